"""What a model keeps beside the caches of transformers' own classes (extra `trace`); says so when it cannot."""

from __future__ import annotations

import importlib

import pytest
from tests.models import caches
from tests.models.classes import smallest_of_each_type


@pytest.mark.trace
@pytest.mark.filterwarnings("ignore")
def test_every_cache_has_our_bytes() -> None:
    for name in ("torch", "transformers"):
        try:
            importlib.import_module(name)
        except ImportError:
            pytest.skip(f"not compared with transformers' caches: no {name} (extra `trace`)")
    found = [caches.compare(row, caches.SHORT) for row in smallest_of_each_type()]
    built = [one for one in found if one.differ is not None]
    assert len(built) >= 90
    assert {one.model_type: one.differ[:3] for one in built if one.differ} == {}
