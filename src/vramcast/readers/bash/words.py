"""Words of a bash script with their expansions, worked out without executing anything.

What cannot be known (a variable that is not set, the output of a command) stays in a word as a gap with its reason, so
that only who needs the word has to refuse it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from vramcast.readers.bash.arithmetic import evaluate
from vramcast.readers.bash.tree import TooLong

_GAPS_FROM = 0xF0000
"""Code point of the first gap in a text: a private plane, where no script has characters."""
_SPLIT_WORDS = frozenset(("simple_expansion", "expansion"))
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
UNSET = "is not set in the script"
EMPTY = "is empty"
LONGEST_VALUE = 2**16
"""Characters of a variable; a longer one is a gap."""
_LONGEST_NAME = 80
_MOST_EXPANDED = 2**22
"""Characters that all expansions of a script may give: no script is larger, and doubled values grow without end."""
_OLD_SUM = re.compile(r"\$\[ (.*?) \]", re.DOTALL)
_NAMES = re.compile(r"\$\{?(\w+)")
_INDEX = re.compile(r"[0-9]{1,9}", re.ASCII)
_DEFAULTS = (":-", "-", ":=", "=")


class _Open(ValueError):
    """A gap, as the character that stands for it, inside an expression."""


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
        self.variables: dict[str, Variable] = {"HOME": Variable([Raw("~", 0)]), "PWD": Variable([Raw(".", 0)])}
        self.gaps: list[Gap] = []
        self.expanded = 0
        self.undo: list[dict[str, Variable | None]] = []
        """For each branch that is open, what it found in the variables that it changes."""

    def finished(self, raw: Raw) -> Word:
        """The word with its gaps beside it."""
        marks = [ord(char) - _GAPS_FROM for char in raw.text if ord(char) >= _GAPS_FROM]
        text = "".join(char for char in raw.text if ord(char) < _GAPS_FROM)
        return Word(text, raw.line, tuple(self.gaps[mark] for mark in dict.fromkeys(marks) if mark < len(self.gaps)))

    def put(self, name: str, value: Variable) -> None:
        """Set a variable."""
        if self.undo:
            self.undo[-1].setdefault(name, self.variables.get(name))
        self.variables[name] = value

    def back(self) -> dict[str, Variable | None]:
        """Leave a branch: its variables have their values before it again, which come back."""
        before = self.undo.pop()
        for name, value in before.items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value
        return before

    def gap(self, name: str, why: str, line: int) -> str:
        """A new gap, as the text that stands for it."""
        self.gaps.append(Gap(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...", why, line))
        return chr(_GAPS_FROM + len(self.gaps) - 1)

    def fields(self, node: Any) -> list[Raw]:
        """The arguments that one word of a command becomes: none, one, or several."""
        line = line_of(node)
        if node.type == "concatenation":
            return self._filled(self._joined(self._pieces(node), line), node)
        if node.type == "string":
            pieces = self._quoted(node)
            # An array of no elements leaves no word behind, where an empty text leaves an empty word.
            return self._filled(self._joined(pieces, line), node) if any(pieces) or not pieces else []
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

    def word(self, node: Any) -> Word:
        """The word as one text, with its gaps beside it."""
        return self.finished(Raw(self.text(node), line_of(node)))

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
        done: list[tuple[list[str], int]] = []
        for piece in pieces:
            for index, raw in enumerate(piece):
                if index == 0 and done:
                    done[-1][0].append(raw.text)
                else:
                    done.append(([raw.text], raw.line))
        return [Raw("".join(texts), at) for texts, at in done] or [Raw("", line)]

    def _filled(self, fields: list[Raw], node: Any) -> list[Raw]:
        """`key=$X` with nothing in X: a gap says so, as nobody means the empty text."""
        *others, last = fields
        names = _NAMES.findall(self.source_of(node)) if last.text.endswith("=") else ()
        if not names:
            return fields
        return [*others, Raw(last.text + self.gap(f"${names[-1]}", EMPTY, last.line), last.line)]

    def _quoted(self, node: Any) -> list[list[Raw]]:
        """The pieces of a double-quoted string; the text between expansions is taken as it is written."""
        pieces: list[list[Raw]] = []
        at, line = node.start_byte + 1, line_of(node)
        for child in node.named_children:
            if child.type == "string_content":
                continue
            written = self.source[child.start_byte : child.end_byte]
            # The parser counts blanks before `$(` to it.
            start = child.start_byte + len(written) - len(written.lstrip())
            pieces += [self._literal(at, start, line), self._in_quotes(child)]
            at, line = child.end_byte, child.end_point[0] + 1
        pieces.append(self._literal(at, node.end_byte - 1, line))
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
        value = self._stands_for(node)
        self.expanded += sum(len(raw.text) + 1 for raw in value.words)
        if self.expanded > _MOST_EXPANDED:
            raise TooLong(f"line {line_of(node)}: the variables expand to more than {_MOST_EXPANDED >> 20} MB of text")
        return value

    def _stands_for(self, node: Any) -> Variable:
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
        return self.variables.get(name) or Variable([Raw(self.gap(f"${name}", UNSET, line), line)])

    def _with_default(self, name: str, rest: list[Any], node: Any) -> Variable:
        operator, words, line = self.source_of(rest[0]), rest[1:], line_of(node)
        known = self.variables.get(name)
        is_set = known is not None and (not operator.startswith(":") or any(raw.text for raw in known.words))
        text = "".join(self.text(word) for word in words)
        if "$[" in text:  # how `shell` spells the arithmetic of a default for the parser
            text = _OLD_SUM.sub(lambda found: self._worked_out(found[1], f"$(({found[1]}))", line), text)
        other = Variable([Raw(text, line)])
        if operator in (":+", "+"):
            return other if is_set else Variable([Raw("", line)])
        if operator in (":?", "?", *_DEFAULTS) and known and is_set:
            return known
        if operator in (":?", "?"):
            return self._named(name, line) if known is None else self._unknown(node)
        if operator not in _DEFAULTS:
            return self._unknown(node)
        if operator in (":=", "="):
            self.put(name, other)
        return other

    def _element(self, target: Any, text: str, line: int) -> Variable:
        """`${A[@]}`, `${A[*]}` or `${A[0]}`."""
        name, _, index = text.rstrip("]").partition("[")
        known = self._named(name, line)
        if index in ("@", "*"):
            return Variable(known.words, is_array=True)
        if _INDEX.fullmatch(index) and int(index) < len(known.words):
            return Variable([known.words[int(index)]])
        return self._unknown(target)

    def _unknown(self, node: Any) -> Variable:
        line = line_of(node)
        return Variable([Raw(self.gap(self.source_of(node), "is an expansion that is not read", line), line)])

    def _sum(self, node: Any) -> str:
        """`$((...))` of whole numbers."""
        result = self.arithmetic(node.start_byte + len("$(("), node.end_byte - len("))"), node)
        return result if isinstance(result, str) else str(result)

    def arithmetic(self, start: int, end: int, node: Any) -> int | str:
        """The value of the arithmetic in a part of the source, or the gap that keeps it from being known."""
        return self._result(self._spliced(start, end, _leaves(node)), self.source_of(node), line_of(node))

    def _worked_out(self, text: str, source: str, line: int) -> str:
        return str(self._result(text, source, line))

    def _result(self, text: str, source: str, line: int) -> int | str:
        def value_of(name: str) -> str:
            return _no_gap(" ".join(raw.text for raw in self._named(name, line).words))

        try:
            return evaluate(_no_gap(text), value_of)
        except _Open as gap:
            return str(gap)
        except ValueError:
            return self.gap(source, "is no arithmetic of whole numbers", line)

    def _spliced(self, start: int, end: int, nodes: Iterable[Any]) -> str:
        """Source text in which `nodes` are replaced by what they stand for."""
        parts: list[str] = []
        for node in nodes:
            parts += [self._between(start, node.start_byte), self.text(node)]
            start = node.end_byte
        return "".join([*parts, self._between(start, end)])

    def _between(self, start: int, end: int) -> str:
        return self.source[start:end].decode("utf-8", "replace").replace("\\\n", "")


def _leaves(node: Any) -> Iterator[Any]:
    """The expansions inside an arithmetic expression; its operators, names and numbers are read from the text."""
    for child in node.named_children:
        if child.type in (*_SPLIT_WORDS, "command_substitution"):
            yield child
        else:
            yield from _leaves(child)


def first_gap(text: str) -> str:
    """The first gap in a text, as the character that stands for it; empty if there is none."""
    return next((char for char in text if ord(char) >= _GAPS_FROM), "")


def _no_gap(text: str) -> str:
    if gap := first_gap(text):
        raise _Open(gap)
    return text


def line_of(node: Any) -> int:
    return node.start_point[0] + 1
