"""Arithmetic of bash: `$((...))` and `((...))` on whole numbers of 64 bits, without assignments."""

from __future__ import annotations

import re
from collections.abc import Callable

_LONGEST = 500
_DEEPEST = 24
_LIMIT = 2**63
_TOKEN = re.compile(r"\s*(\d+#[\w@]+|\d\w*|[A-Za-z_]\w*|<<|>>|<=|>=|==|!=|&&|\|\||\*\*|[-+*/%<>&^|?:()!~])")
_LEVELS = "|| && | ^ & ==,!= <=,>=,<,> <<,>> +,- *,/,%"
_LEVEL = {operator: level for level, operators in enumerate(_LEVELS.split()) for operator in operators.split(",")}
"""How strongly the operators of two sides bind that are read from the left."""


def evaluate(text: str, value_of: Callable[[str], str]) -> int:
    """The value of an expression; `value_of` gives the text of a variable, which is an expression again.

    Raises:
        ValueError: no arithmetic, longer or deeper than anybody writes, or beyond 64 bits.
    """
    return _Expression(text, value_of, 0).value()


def _quotient(left: int, right: int) -> int:
    """Division towards zero, as C does it."""
    if not right:
        raise ValueError("division by zero")
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _power(left: int, right: int) -> int:
    if (not 0 <= right < 64 and abs(left) > 1) or right < 0:
        raise ValueError("a power beyond 64 bits")
    return left**right


def _shift(left: int, right: int) -> int:
    if not 0 <= right < 64:
        raise ValueError("a shift beyond 64 bits")
    return left << right


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "|": int.__or__,
    "^": int.__xor__,
    "&": int.__and__,
    "==": lambda left, right: int(left == right),
    "!=": lambda left, right: int(left != right),
    "<=": lambda left, right: int(left <= right),
    ">=": lambda left, right: int(left >= right),
    "<": lambda left, right: int(left < right),
    ">": lambda left, right: int(left > right),
    "<<": _shift,
    ">>": lambda left, right: left >> min(max(right, 0), 64),
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "/": _quotient,
    "%": lambda left, right: left - right * _quotient(left, right),
    "**": _power,
}


class _Expression:
    """One walk over the tokens. What a condition leaves out is read and not worked out (`live`)."""

    def __init__(self, text: str, value_of: Callable[[str], str], depth: int) -> None:
        if len(text) > _LONGEST or depth > _DEEPEST:
            raise ValueError(text[:40])
        self.tokens: list[str] = []
        at, text = 0, text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if not found:
                raise ValueError(text)
            self.tokens.append(found[1])
            at = found.end()
        self.at = 0
        self.depth = depth
        self.value_of = value_of

    def value(self) -> int:
        result = self.choice(True)
        if self.at < len(self.tokens):
            raise ValueError(self.tokens[self.at])
        return result

    def take(self, *wanted: str) -> str:
        """The next token, if it is one of these; empty if not."""
        if self.at < len(self.tokens) and self.tokens[self.at] in wanted:
            self.at += 1
            return self.tokens[self.at - 1]
        return ""

    def choice(self, live: bool) -> int:
        condition = self.binary(0, live)
        if not self.take("?"):
            return condition
        yes = self.choice(live and bool(condition))
        if not self.take(":"):
            raise ValueError("? without :")
        no = self.choice(live and not condition)
        return yes if condition else no

    def binary(self, weakest: int, live: bool) -> int:
        """An expression of operators that bind at least as strongly as those of level `weakest`."""
        left = self.power(live)
        while self.at < len(self.tokens) and (level := _LEVEL.get(self.tokens[self.at], -1)) >= weakest:
            operator = self.tokens[self.at]
            self.at += 1
            if operator in ("&&", "||"):
                right = self.binary(level + 1, live and bool(left) == (operator == "&&"))
                left = int(bool(left and right) if operator == "&&" else bool(left or right))
            else:
                left = self.worked(operator, left, self.binary(level + 1, live), live)
        return left

    def power(self, live: bool) -> int:
        base = self.unary(live)
        return self.worked("**", base, self.power(live), live) if self.take("**") else base

    def worked(self, operator: str, left: int, right: int, live: bool) -> int:
        if not live:
            return 0
        result = _OPERATORS[operator](left, right)
        if not -_LIMIT <= result < _LIMIT:
            raise ValueError("beyond 64 bits")
        return result

    def unary(self, live: bool) -> int:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ValueError("nested too deeply")
        sign = self.take("-", "+", "!", "~")
        value = self.unary(live) if sign else self.atom(live)
        self.depth -= 1
        return {"-": -value, "+": value, "!": int(not value), "~": ~value, "": value}[sign]

    def atom(self, live: bool) -> int:
        if self.take("("):
            inner = self.choice(live)
            if not self.take(")"):
                raise ValueError("( without )")
            return inner
        if self.at == len(self.tokens):
            raise ValueError("an expression ends too early")
        token = self.tokens[self.at]
        self.at += 1
        if token[0].isdigit():
            return _number(token)
        if not (token[0].isalpha() or token[0] == "_"):
            raise ValueError(token)
        if not live:
            return 0
        return _Expression(self.value_of(token) or "0", self.value_of, self.depth + 1).value()


def _number(token: str) -> int:
    base, sharp, digits = token.partition("#")
    if sharp:
        number = int(digits, int(base)) if 2 <= int(base[:3]) <= 36 else _LIMIT
    elif token[:2].lower() == "0x":
        number = int(token, 16)
    else:
        number = int(token, 8 if token[0] == "0" else 10)
    if number >= _LIMIT:
        raise ValueError("beyond 64 bits")
    return number
