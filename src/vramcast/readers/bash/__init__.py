"""A bash launch script, read without executing anything."""
