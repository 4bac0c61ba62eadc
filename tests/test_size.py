"""The size of the source is a decision: one budget of code lines, no long file, each file saying what it is for."""

import ast

from tools.structure import SOURCES
from tools.structure import code_lines as _code_lines

BUDGET = 30_800
"""Lines of code in all of `src`. Raised only with a reason in the commit that needs it: the
forwards of 88 more model types, with the operators that they need, came at 1,300 lines net."""
LONGEST = 400


def test_what_counts_as_code() -> None:
    text = '"""Doc."""\n\n# comment\nx = 1  # why\n'
    text += 'def f():\n    """Doc\n    more."""\n    return [\n        x,\n    ]\n'
    assert _code_lines(text) == 5


def test_the_source_keeps_its_budget() -> None:
    assert sum(_code_lines(path.read_text(encoding="utf-8")) for path in SOURCES) <= BUDGET


def test_no_source_file_is_long() -> None:
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [path.name for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert silent == []
