"""Test-wide settings: property tests without deadlines, and the same examples on every run of CI."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("local", deadline=None, max_examples=100)
settings.register_profile("ci", deadline=None, max_examples=200, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True, scope="session")
def no_models_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests do not see what frameworks have downloaded here."""
    os.environ["HF_HUB_CACHE"] = str(Path(tmp_path_factory.mktemp("hub")))
