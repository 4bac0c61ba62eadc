"""The text of PYTORCH_ALLOC_CONF as PyTorch cuts it into keys and values, and its numbers as C++ reads them.

Source: c10/core/AllocatorConfig.h (torch 2.13): ConfigTokenizer. It passes over a wrong separator without a word
(`max_split_size_mb,128`), where older versions raise; such a text is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from vramcast.errors import refuse
from vramcast.units import MIB

Item: TypeAlias = tuple[str, str]
Value: TypeAlias = str | list[Item]
"""one word, or a list of `word:word`"""
UNLIMITED = (1 << 64) - 1
"""the largest size_t"""

_WORD = re.compile(r"[,:\[\]]|[^,:\[\]]+")
_WHOLE = re.compile(r"([+-]?)(\d+)", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_MARKS = frozenset(",:[]")
_SPACE = dict.fromkeys(map(ord, " \t\n\v\f\r"))


class Words:
    """The words of a text, read from the left. Space means nothing, not even between words."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words: list[str] = _WORD.findall(text.translate(_SPACE))
        self._at = 0

    def entries(self) -> Iterator[tuple[str, Value]]:
        """Every `key:value`. One comma may end the text.

        Raises:
            Refused: a separator is missing, or a word.
        """
        while self._at < len(self._words):
            key = self._word("a key")
            self._mark(":")
            yield key, self._list() if self._next() == "[" else self._word(f"the value of {key}")
            if self._at < len(self._words):
                self._mark(",")

    def _list(self) -> list[Item]:
        self._mark("[")
        items: list[Item] = []
        while self._next() != "]":
            name = self._word("a word of the list")
            self._mark(":")
            items.append((name, self._word(f"the value of {name}")))
            if self._next() != "]":
                self._mark(",")
        self._mark("]")
        return items

    def _next(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _mark(self, mark: str) -> None:
        if self._next() != mark:
            raise self._wrong(repr(mark))
        self._at += 1

    def _word(self, what: str) -> str:
        word = self._next()
        if not word or word in _MARKS:
            raise self._wrong(what)
        self._at += 1
        return word

    def _wrong(self, expected: str) -> Exception:
        found = repr(self._next()) if self._next() else "the end"
        read = "".join(self._words[: self._at])
        return refuse(
            f"{expected} is expected where {found} stands in {self._text!r}",
            after=repr(read) if read else "",
            allowed="key:value,key:value; a list is [256:1,512:2]",
        )


def whole(word: str) -> int | None:
    """std::stoull: digits, whatever follows them; a minus wraps around. None: no number, or too large."""
    match = _WHOLE.match(word)
    if match is None or len(match[2].lstrip("0")) > len(str(UNLIMITED)) or int(match[2]) > UNLIMITED:
        return None
    return -int(match[2]) & UNLIMITED if match[1] == "-" else int(match[2])


def decimal(word: str) -> float | None:
    """std::stod, without its hexadecimal notation. None: no number."""
    match = _DECIMAL.match(word)
    return float(match[0]) if match else None


def mib(count: int) -> int:
    """So many MiB in bytes; more than a size_t holds is the most that it holds."""
    return min(count, UNLIMITED // MIB) * MIB


def is_power(count: int) -> bool:
    """A power of two, as llvm::isPowerOf2_64 has it: zero is none."""
    return count > 0 and count & (count - 1) == 0
