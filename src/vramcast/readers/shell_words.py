"""Words of a bash script with their expansions, worked out without executing anything.

What cannot be known (a variable that is not set, the output of a command) stays in a word as a gap with its reason, so
that only who needs the word has to refuse it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

_GAPS_FROM = 0xF0000
"""Code point of the first gap in a text: a private plane, where no script has characters."""
_SPLIT_WORDS = frozenset(("simple_expansion", "expansion"))
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_LONGEST_SUM = 500
_DEFAULTS = (":-", "-", ":=", "=")


class Gap(NamedTuple):
    """Something in a word that is not known: what, why, and the line of it."""

    name: str
    why: str
    line: int


class Word(NamedTuple):
    """One argument: its text, in which gaps are left out, its line, and its gaps."""

    text: str
    line: int
    gaps: tuple[Gap, ...] = ()


class Raw(NamedTuple):
    """A word while it is put together: gaps stand in its text as characters of their own."""

    text: str
    line: int


class Variable(NamedTuple):
    """The words of an array, or the one text of a plain variable."""

    words: list[Raw]
    is_array: bool = False


class Words:
    """The variables of a script so far, and the expansion of words with them."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.variables: dict[str, Variable] = {"HOME": Variable([Raw("~", 0)])}
        self.gaps: list[Gap] = []

    def finished(self, raw: Raw) -> Word:
        """The word with its gaps beside it."""
        marks = [ord(char) - _GAPS_FROM for char in raw.text if ord(char) >= _GAPS_FROM]
        text = "".join(char for char in raw.text if ord(char) < _GAPS_FROM)
        return Word(text, raw.line, tuple(self.gaps[mark] for mark in marks if mark < len(self.gaps)))

    def gap(self, name: str, why: str, line: int) -> str:
        """A new gap, as the text that stands for it."""
        self.gaps.append(Gap(name, why, line))
        return chr(_GAPS_FROM + len(self.gaps) - 1)

    def fields(self, node: Any) -> list[Raw]:
        """The arguments that one word of a command becomes: none, one, or several."""
        line = line_of(node)
        if node.type == "concatenation":
            return self._joined(self._pieces(node), line)
        if node.type == "string":
            pieces = self._quoted(node)
            # An array of no elements leaves no word behind, where an empty text leaves an empty word.
            return self._joined(pieces, line) if any(pieces) or not pieces else []
        if node.type in _SPLIT_WORDS:
            return self._unquoted(node)
        return [Raw(self._plain(node), line)]

    def text(self, node: Any) -> str:
        """The word as one text, as on the right of an assignment: nothing is split."""
        if node.type == "concatenation":
            return "".join(self.text(child) for child in node.children)
        if node.type == "string":
            return " ".join(raw.text for raw in self.fields(node))
        if node.type in _SPLIT_WORDS:
            return " ".join(raw.text for raw in self._value(node).words)
        return self._plain(node)

    def here_text(self, body: Any) -> str:
        """A here-document with its expansions."""
        nodes = [child for child in body.named_children if child.type != "heredoc_content"]
        return self._spliced(body.start_byte, body.end_byte, nodes)

    def source_of(self, node: Any) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def _plain(self, node: Any) -> str:
        text = self.source_of(node)
        match node.type:
            case "raw_string":
                return text[1:-1]
            case "ansi_c_string":
                return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text[2:-1])
            case "arithmetic_expansion":
                return self._sum(node)
            case "command_substitution" | "process_substitution":
                return self.gap(text, "is not executed", line_of(node))
            case _:
                return re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))

    def _pieces(self, node: Any) -> list[list[Raw]]:
        return [self.fields(child) for child in node.children]

    def _joined(self, pieces: list[list[Raw]], line: int) -> list[Raw]:
        """Pieces that touch: the last field of one and the first of the next are one word."""
        done: list[Raw] = []
        for piece in pieces:
            for index, raw in enumerate(piece):
                if index == 0 and done:
                    done[-1] = Raw(done[-1].text + raw.text, done[-1].line)
                else:
                    done.append(raw)
        return done or [Raw("", line)]

    def _quoted(self, node: Any) -> list[list[Raw]]:
        """The pieces of a double-quoted string; the text between expansions is taken as it is written."""
        pieces: list[list[Raw]] = []
        at = node.start_byte + 1
        for child in node.named_children:
            if child.type == "string_content":
                continue
            written = self.source[child.start_byte : child.end_byte]
            start = (
                child.start_byte + len(written) - len(written.lstrip())
            )  # the parser counts blanks before `$(` to it
            pieces += [self._literal(at, start, line_of(child)), self._in_quotes(child)]
            at = child.end_byte
        pieces.append(self._literal(at, node.end_byte - 1, line_of(node)))
        return [piece for index, piece in enumerate(pieces) if piece or index % 2]  # no empty literals

    def _in_quotes(self, node: Any) -> list[Raw]:
        if node.type in _SPLIT_WORDS:
            value = self._value(node)
            if value.is_array and not self.source_of(node).endswith("[*]}"):
                return value.words
            return [Raw(" ".join(raw.text for raw in value.words), line_of(node))]
        return [Raw(self._plain(node), line_of(node))]

    def _literal(self, start: int, end: int, line: int) -> list[Raw]:
        text = re.sub(r'\\(["\\$`])', r"\1", self._between(start, end))
        return [Raw(text, line)] if text else []

    def _unquoted(self, node: Any) -> list[Raw]:
        value, line = self._value(node), line_of(node)
        return [Raw(part, raw.line if value.is_array else line) for raw in value.words for part in raw.text.split()]

    def _value(self, node: Any) -> Variable:
        """What `$X`, `${X}` or `${X...}` stands for."""
        line = line_of(node)
        target, *rest = [child for child in node.children if child.type not in ("$", "${", "}")] or [node]
        name = self.source_of(target)
        if name in ("@", "*"):
            return Variable([], is_array=True)
        if target.type == "subscript":
            return self._element(target, name, line) if not rest else self._unknown(node)
        if target.type not in ("variable_name", "special_variable_name"):
            return self._unknown(node)
        if not rest:
            return self._named(name, line)
        return self._with_default(name, rest, node)

    def _named(self, name: str, line: int) -> Variable:
        return self.variables.get(name) or Variable([Raw(self.gap(f"${name}", "is not set in the script", line), line)])

    def _with_default(self, name: str, rest: list[Any], node: Any) -> Variable:
        operator, words, line = self.source_of(rest[0]), rest[1:], line_of(node)
        known = self.variables.get(name)
        is_set = known is not None and (not operator.startswith(":") or any(raw.text for raw in known.words))
        other = Variable([Raw("".join(self.text(word) for word in words), line)])
        if operator in (":+", "+"):
            return other if is_set else Variable([Raw("", line)])
        if operator in (":?", "?", *_DEFAULTS) and known and is_set:
            return known
        if operator in (":?", "?"):
            return self._named(name, line) if known is None else self._unknown(node)
        if operator not in _DEFAULTS:
            return self._unknown(node)
        if operator in (":=", "="):
            self.variables[name] = other
        return other

    def _element(self, target: Any, text: str, line: int) -> Variable:
        """`${A[@]}`, `${A[*]}` or `${A[0]}`."""
        name, _, index = text.rstrip("]").partition("[")
        known = self._named(name, line)
        if index in ("@", "*"):
            return Variable(known.words, is_array=True)
        if index.isdigit() and int(index) < len(known.words):
            return Variable([known.words[int(index)]])
        return self._unknown(target)

    def _unknown(self, node: Any) -> Variable:
        line = line_of(node)
        return Variable([Raw(self.gap(self.source_of(node), "is an expansion that is not read", line), line)])

    def _sum(self, node: Any) -> str:
        """`$((...))` of whole numbers."""
        end = node.end_byte - len("))")
        text = self._spliced(node.start_byte + len("$(("), end, _leaves(node), arithmetic=True)
        unknown = [char for char in text if ord(char) >= _GAPS_FROM]
        if unknown:
            return unknown[0]
        try:
            return str(evaluate(text))
        except ValueError:
            return self.gap(self.source_of(node), "is no arithmetic of whole numbers", line_of(node))

    def _spliced(self, start: int, end: int, nodes: Iterable[Any], arithmetic: bool = False) -> str:
        """Source text in which `nodes` are replaced by what they stand for."""
        parts: list[str] = []
        for node in nodes:
            parts.append(self._between(start, node.start_byte))
            if node.type == "variable_name":
                value = self._named(self.source_of(node), line_of(node))
                parts.append(" ".join(raw.text for raw in value.words))
            else:
                parts.append(self.text(node))
            if arithmetic:
                parts[-1] = f"({parts[-1]})"
            start = node.end_byte
        return "".join([*parts, self._between(start, end)])

    def _between(self, start: int, end: int) -> str:
        return self.source[start:end].decode("utf-8", "replace").replace("\\\n", "")


def evaluate(text: str) -> int:
    """Arithmetic of whole numbers with + - * / % and parentheses, as bash does it.

    Raises:
        ValueError: anything else.
    """
    if len(text) > _LONGEST_SUM:
        raise ValueError(text)
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError):
        raise ValueError(text) from None


def _evaluated(tree: ast.expr) -> int:
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluated(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return _OPERATORS[type(operator)](_evaluated(left), _evaluated(right))
        case _:
            raise ValueError


def _quotient(left: int, right: int) -> int:
    """Division towards zero, as C does it."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
    ast.Div: _quotient,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
}


def _leaves(node: Any) -> Iterator[Any]:
    """The expansions inside an arithmetic expression; its operators and numbers are read from the text."""
    for child in node.named_children:
        if child.type in (*_SPLIT_WORDS, "variable_name", "command_substitution"):
            yield child
        else:
            yield from _leaves(child)


def line_of(node: Any) -> int:
    return node.start_point[0] + 1
