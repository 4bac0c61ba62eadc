"""What runs in the child process: the only modules that import torch and the frameworks."""
