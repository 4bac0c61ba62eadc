"""The structure that `tools/structure.py` prints: no circle of imports, and what `check` loads."""

from __future__ import annotations

import re
import tomllib

import pytest
from tools.structure import ROOT, SOURCES, circles, graph, loaded, main

EDGES = graph()


def test_no_circle_of_imports() -> None:
    """When modules are loaded; what a function imports is later than that."""
    assert circles(EDGES) == []
    assert "vramcast.estimate.resolve" in EDGES["vramcast.estimate"]


def test_a_circle_is_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}
    assert circles(edges) == ["b", "c"]


def test_check_loads_neither_the_rules_nor_the_validation_nor_the_trace() -> None:
    found = loaded("check --model Qwen2.5-0.5B --gpu t4 --json")
    assert 0 < found.own < len(SOURCES) * 0.6


def test_every_dependency_is_imported() -> None:
    """A name in pyproject.toml that nothing imports is dead weight for everyone who installs the package."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {"PyYAML": "yaml"}
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    for line in declared:
        package = re.split(r"[>=<]", line)[0]
        module = names.get(package, package.replace("-", "_"))
        assert re.search(rf"^\s*(from|import) {module}\b", text, re.MULTILINE), package


def test_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    printed = capsys.readouterr().out
    assert "in circles: 0 modules" in printed
    assert re.search(r"[\d,]+  lines of code in \d+ files", printed)
