"""The scripts of `bench/`: what they import is there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("script", ["startup.py"])
def test_it_imports(script: str) -> None:
    assert "main" in runpy.run_path(str(BENCH / script))


@pytest.mark.trace
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", ["trace.py", "trace_accuracy.py", "formula_beside_trace.py"])
def test_it_imports_beside_torch(script: str) -> None:
    pytest.importorskip("trl")
    assert "main" in runpy.run_path(str(BENCH / script))
