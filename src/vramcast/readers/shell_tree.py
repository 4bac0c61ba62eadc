"""The tree of a bash script, by tree-sitter, and the spellings that its grammar for bash takes wrongly."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

LIMIT_BYTES = 2**18
_MOST_REPAIRS = 8
_OPENING, _CLOSING = ord("("), ord(")")

Edit = tuple[int, int, bytes]
"""Bytes from, bytes to, and what stands there instead."""


def parsed(text: str) -> tuple[bytes, Any]:
    """The bytes that were parsed, and the root of their nodes. Lines keep their numbers.

    Three spellings are written otherwise for the parser: it takes the line after `A=1 B=2` for a command with these
    assignments, `$X` in `a-$X/b` for the end of a word, and `$((...))` in the default of a variable for a command.
    """
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    parser = Parser(Language(tree_sitter_bash.language()))
    source = text.encode("utf-8", "replace")
    root = parser.parse(source).root_node
    for _ in range(_MOST_REPAIRS):
        edits = _edits(source, root)
        if not edits:
            break
        parts, at = list[bytes](), 0
        for start, end, new in sorted(edits):
            parts += [source[at:start], new]
            at = end
        source = b"".join([*parts, source[at:]])
        root = parser.parse(source).root_node
    return source, root


def _edits(source: bytes, root: Any) -> list[Edit]:
    edits: list[Edit] = []
    stack = [root]
    while stack:
        node = stack.pop()
        children = node.children
        if node.type == "command" and children and children[0].type == "variable_assignment":
            edits += [(end, end, b";") for end in _swallowed(source, children)]
        elif node.type == "expansion":
            edits += _sums(source, node)
        elif node.type == "$":
            edits += _named(source, node.end_byte)
        stack += children if node.type not in ("expansion", "simple_expansion") else []
    return edits


def _swallowed(source: bytes, children: list[Any]) -> list[int]:
    """Where a line of assignments ends and the parser went on with the next line."""
    return [
        one.end_byte
        for one, after in pairwise(children)
        if one.type == "variable_assignment" and b"\n" in source[one.end_byte : after.start_byte].replace(b"\\\n", b"")
    ]


def _named(source: bytes, at: int) -> list[Edit]:
    """Braces around the name behind a `$` that the parser left alone."""
    end = at
    while source[end : end + 1].isalnum() or source[end : end + 1] == b"_":
        end += 1
    return [(at, at, b"{"), (end, end, b"}")] if end > at and not source[at : at + 1].isdigit() else []


def _sums(source: bytes, node: Any) -> list[Edit]:
    """`$((1 + 2))` in an expansion as `$[ 1 + 2 ]`, the older spelling of the same."""
    edits: list[Edit] = []
    at = source.find(b"$((", node.start_byte, node.end_byte)
    while at >= 0:
        end = _closed(source, at + 1)
        if end and source[end - 2 : end] == b"))":
            edits += [(at, at + 3, b"$[ "), (end - 2, end, b" ]")]
        at = source.find(b"$((", end or at + 3, node.end_byte)
    return edits


def _closed(source: bytes, at: int) -> int:
    """Where the bracket that opens at `at` is closed, or 0; an expression is short."""
    depth = 0
    for index in range(at, min(at + 500, len(source))):
        depth += (source[index] == _OPENING) - (source[index] == _CLOSING)
        if not depth:
            return index + 1
    return 0
