"""What tests of the trace share."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.fixture(autouse=True, scope="package")
def importable() -> None:
    """Other processes find the package as this one does, wherever they run."""
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
