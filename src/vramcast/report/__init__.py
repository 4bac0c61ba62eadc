"""Answers as text, JSON and markdown."""
