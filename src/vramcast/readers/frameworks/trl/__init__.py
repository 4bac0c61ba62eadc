"""TRL: its YAML, its command lines and the scripts around it."""
