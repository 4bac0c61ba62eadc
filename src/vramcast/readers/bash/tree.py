"""The tree of a bash script, by tree-sitter, and the spellings that its grammar for bash takes wrongly."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

LIMIT_BYTES = 2**17
_MOST_REPAIRS = 8
_LONGEST_SECONDS = 2.0
"""A script takes milliseconds; the parser's repair of what is no bash can take minutes and gigabytes."""
_PART_BYTES = 2**14
_OPENING, _CLOSING = ord("("), ord(")")


class TooLong(ValueError):
    """More work than any script is."""


Edit = tuple[int, int, bytes]
"""Bytes from, bytes to, and what stands there instead."""


def parsed(text: str) -> tuple[bytes, Any]:
    """The bytes that were parsed, and the root of their nodes. Lines keep their numbers.

    Three spellings are written otherwise for the parser: it takes the line after `A=1 B=2` for a command with these
    assignments, `$X` in `a-$X/b` for the end of a word, and `$((...))` in the default of a variable for a command.
    """
    source = text.encode("utf-8", "replace") + b"\n"  # without a line's end the parser takes quadratic time
    root = _root(source)
    for _ in range(_MOST_REPAIRS):
        edits = _edits(source, root)
        if not edits:
            break
        parts, at = list[bytes](), 0
        for start, end, new in sorted(edits):
            parts += [source[at:start], new]
            at = end
        source = b"".join([*parts, source[at:]])
        root = _root(source)
    return source, root


def _root(source: bytes) -> Any:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    parser = Parser(Language(tree_sitter_bash.language()))
    end = time.monotonic() + _LONGEST_SECONDS

    def stop(_at: int, _error: bool) -> bool:
        return time.monotonic() > end

    try:  # in parts, as only then it can be stopped
        tree = parser.parse(lambda at, _: source[at : at + _PART_BYTES], progress_callback=stop)
    except ValueError:
        raise TooLong("this is not bash that can be read") from None
    return tree.root_node


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
