"""Test-wide settings: property tests without deadlines, and the same examples on every run of CI."""

import os

from hypothesis import settings

settings.register_profile("local", deadline=None, max_examples=100)
settings.register_profile("ci", deadline=None, max_examples=200, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
