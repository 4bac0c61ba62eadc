"""The size of the source is a decision: no long file, small files on the whole, each saying what it is for."""

import ast
from pathlib import Path
from statistics import median

SOURCES = sorted((Path(__file__).parent.parent / "src").rglob("*.py"))
LONGEST, MEDIAN = 400, 160


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_source_file_is_long() -> None:
    assert {path.name: _lines(path) for path in SOURCES if _lines(path) > LONGEST} == {}


def test_most_source_files_are_small() -> None:
    """Over files with code in them: an `__init__.py` of a line would only flatter the figure."""
    assert median(_lines(path) for path in SOURCES if path.name != "__init__.py") < MEDIAN


def test_every_module_says_what_it_is_for() -> None:
    silent = [path.name for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert silent == []
