"""What the source is made of: lines, files, circles of imports, and what `check` loads. `python tools/structure.py`.

Lines of code are counted as `tests/test_size.py` counts them: no blank lines, comments, docstrings.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CHECK = "check --model Qwen/Qwen2.5-7B --gpu a100-sxm-80gb --json"
_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
           tokenize.ENDMARKER}  # fmt: skip


class Loaded(NamedTuple):
    """Modules of the package that a command imports, their lines of code, and modules of others."""

    own: int
    lines: int
    others: int


def code_lines(text: str) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            statement.append(token)
        elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if any(part.type != tokenize.STRING for part in statement):  # a string alone documents
                lines.update(line for part in statement for line in range(part.start[0], part.end[0] + 1))
            statement = []
    return len(lines)


def module_of(path: Path) -> str:
    """`src/vramcast/cli/__init__.py` -> `vramcast.cli`."""
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path, known: frozenset[str]) -> Iterator[str]:
    """Modules of the package that a file imports when it is loaded: none inside a function or for types alone."""
    waiting: list[ast.stmt] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{name.name}" for name in node.names} & known
            yield from named
            if node.module in known and len(named) < len(node.names):
                yield node.module
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            waiting += [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            waiting += [*node.body, *node.orelse, *node.finalbody]


def graph(sources: list[Path] = SOURCES) -> dict[str, set[str]]:
    """Module -> the modules that it imports when it is loaded."""
    known = frozenset(module_of(path) for path in sources)
    return {module_of(path): set(imports(path, known)) - {module_of(path)} for path in sources}


def circles(edges: dict[str, set[str]]) -> list[str]:
    """The modules that can reach themselves: what is left when leaves are taken off again and again, from both ends."""
    left = {module: set(found) for module, found in edges.items()}
    while True:
        used = {target for found in left.values() for target in found}
        gone = {module for module, found in left.items() if not found or module not in used}
        if not gone:
            return sorted(left)
        left = {module: found - gone for module, found in left.items() if module not in gone}


def loaded(command: str = CHECK) -> Loaded:
    """What a command has imported when it ends."""
    script = (
        "import sys, io, contextlib\nfrom vramcast.cli import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()): main({command.split()!r})\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    names = set(done.stdout.split())
    own = [path for path in SOURCES if module_of(path) in names]
    return Loaded(len(own), sum(map(lines_of, own)), len(names) - len(own))


def lines_of(path: Path) -> int:
    """Lines of code of a file."""
    return code_lines(path.read_text(encoding="utf-8"))


def main() -> None:
    folders: Counter[str] = Counter()
    for path in SOURCES:
        folders["/".join(path.relative_to(ROOT / "src" / "vramcast").parts[:-1][:1]) or "."] += lines_of(path)
    for folder, lines in folders.most_common():
        print(f"{lines:7,}  {folder}")
    print(f"{sum(folders.values()):7,}  lines of code in {len(SOURCES)} files")
    longest = max(SOURCES, key=lambda path: len(path.read_text(encoding="utf-8").splitlines()))
    print(f"{len(longest.read_text(encoding='utf-8').splitlines()):7,}  lines of the longest, {longest.name}")
    edges = graph()
    print(f"{sum(map(len, edges.values())):7,}  imports between them; in circles: {len(circles(edges))} modules")
    found = loaded()
    print(f"{found.own:7,}  modules loaded by check, with {found.lines:,} lines; {found.others} of others")


if __name__ == "__main__":
    main()
