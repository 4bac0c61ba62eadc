"""The frameworks whose configurations are read."""
