"""Conditions of a bash script that its own text decides: tests of values that are known, as bash would find them.

A variable that the script does not set counts as empty here, as it does in `${X:-default}`: what a script does without
being told otherwise is what is forecast.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

from vramcast.readers.bash.words import UNSET, Word, Words

_NUMBERS = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-lt": int.__lt__, "-le": int.__le__, "-gt": int.__gt__, "-ge": int.__ge__,
}  # fmt: skip
_INTEGER = re.compile(r"\s*[-+]?\d{1,18}\s*")
_STARS = re.compile(r"[*?\[\\]")


def decide(words: Words, node: Any) -> bool | None:
    """Whether a command succeeds; None where only a run can tell."""
    match node.type:
        case "test_command" | "parenthesized_expression":
            inner = [child for child in node.named_children if child.type != "comment"]
            return _expression(words, inner[0], node.children[0].type == "[[") if len(inner) == 1 else None
        case "compound_statement" if node.children[0].type == "((":
            value = words.arithmetic(node.start_byte + 2, node.end_byte - 2, node)
            return bool(value) if isinstance(value, int) else None
        case "negated_command":
            return _not(decide(words, node.named_children[0]) if node.named_children else None)
        case "list":
            left, operator, *right = [child for child in node.children if child.type != "comment"]
            sides = decide(words, left), decide(words, right[0]) if len(right) == 1 else None
            return _both(*sides) if operator.type == "&&" else _either(*sides)
        case "command":
            return {"true": True, ":": True, "false": False}.get(words.source_of(node))
        case _:
            return None


def matches(words: Words, value: Any, patterns: list[Any]) -> bool | None:
    """Whether the word of a `case` matches one of the patterns."""
    text = _known(words, value)
    found = [_matches(words, text, pattern) for pattern in patterns]
    return True if True in found else None if None in found else False


def _expression(words: Words, node: Any, double: bool) -> bool | None:
    """The inside of `[ ... ]` or `[[ ... ]]`."""
    match node.type:
        case "parenthesized_expression" if len(node.named_children) == 1:
            return _expression(words, node.named_children[0], double)
        case "unary_expression":
            return _unary(words, node, double)
        case "binary_expression":
            return _binary(words, node, double)
        case "string" | "word" | "simple_expansion" | "expansion" | "concatenation" | "number" | "raw_string":
            return _filled(words, node)
        case _:
            return None


def _unary(words: Words, node: Any, double: bool) -> bool | None:
    operator, operand = node.children[0], node.children[-1]
    match words.source_of(operator):
        case "!":
            return _not(_expression(words, operand, double))
        case "-n":
            return _filled(words, operand)
        case "-z":
            return _not(_filled(words, operand))
        case _:
            return None  # a file, a terminal ...


def _binary(words: Words, node: Any, double: bool) -> bool | None:
    if len(node.children) != 3:
        return None
    left, operator, right = node.children
    sign = words.source_of(operator)
    if sign in ("&&", "||"):
        sides = _expression(words, left, double), _expression(words, right, double)
        return _both(*sides) if sign == "&&" else _either(*sides)
    text = _known(words, left)
    if sign in ("=", "==", "!="):
        if double and right.type not in ("string", "raw_string"):
            same = _matches(words, text, right)
        else:
            other = _known(words, right)
            same = None if text is None or other is None else text == other
        return _not(same) if sign == "!=" else same
    other = _known(words, right)
    if sign in _NUMBERS and text is not None and other is not None:
        numbers = _INTEGER.fullmatch(text), _INTEGER.fullmatch(other)
        return _NUMBERS[sign](int(text), int(other)) if all(numbers) else None
    return None


def _filled(words: Words, node: Any) -> bool | None:
    """Whether a word has any text."""
    if node.type.endswith("_expression"):
        return None
    word = words.word(node)
    return True if word.text else None if _open(word) else False


def _known(words: Words, node: Any) -> str | None:
    if node.type.endswith("_expression"):
        return None
    word = words.word(node)
    return None if _open(word) else word.text


def _open(word: Word) -> bool:
    """Whether a word hangs on more than variables that nobody sets; `$1` is for who starts the script to say."""
    return any(gap.why != UNSET or not gap.name[1:].isidentifier() for gap in word.gaps)


def _matches(words: Words, text: str | None, pattern: Any) -> bool | None:
    """A pattern of `case` or of `[[ == ]]`: plain text, or with `*`, `?` and `[...]`."""
    if pattern.type in ("string", "raw_string"):
        wanted = _known(words, pattern)
        return None if text is None or wanted is None else text == wanted
    if pattern.type in ("extglob_pattern", "word", "number"):
        wanted = words.source_of(pattern)
        if wanted == "*":
            return True
        if any(char in wanted for char in "()\\$'\"`") or wanted.count("*") > 4:
            return None
    else:
        wanted = _known(words, pattern)
        if wanted is None or _STARS.search(wanted):
            return None
    return None if text is None else fnmatchcase(text, wanted.replace("[^", "[!"))


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _both(left: bool | None, right: bool | None) -> bool | None:
    return False if False in (left, right) else None if None in (left, right) else True


def _either(left: bool | None, right: bool | None) -> bool | None:
    return True if True in (left, right) else None if None in (left, right) else False
