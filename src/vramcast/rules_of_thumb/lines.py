"""A line of a sum: one rule applied to one part, exact, in the unit its article uses."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

Unit: TypeAlias = Literal["GB = 10^9", "GB = 1024^3"]
DECIMAL: Unit = "GB = 10^9"
BINARY: Unit = "GB = 1024^3"
_SIZES = {DECIMAL: 10**9, BINARY: 1024**3}
_MICRO = Decimal("0.000001")


class Line(NamedTuple):
    """One part of a sum. `size` is bytes, not rounded; `bound`: the article only says that it is less."""

    rule: int
    part: str
    role: str
    formula: str
    figures: str
    size: Fraction
    unit: Unit
    bound: bool = False
    note: str = ""

    @property
    def gb(self) -> Fraction:
        """In the article's own GB."""
        return self.size / _SIZES[self.unit]

    def cut(self, ways: int, words: str) -> Line:
        """The share of one GPU: rule 13. One way changes nothing."""
        if ways == 1 or not self.size:
            return self
        formula, figures = f"{self.formula} ÷ {words}", f"{self.figures} ÷ {ways:,}"
        return self._replace(formula=formula, figures=figures, size=self.size / ways)

    def moved(self, where: str) -> Line:
        """The same part kept somewhere else than on a GPU."""
        return self._replace(size=Fraction(0), note=f"{where}: nothing on the GPU")


def decimal(value: Fraction) -> Decimal:
    """A fraction to six decimals, without trailing zeros."""
    exact = Decimal(value.numerator) / Decimal(value.denominator)
    rounded = exact.quantize(_MICRO, rounding=ROUND_HALF_EVEN)
    return rounded.quantize(Decimal(1)) if rounded == rounded.to_integral_value() else rounded.normalize()


def whole_bytes(value: Fraction) -> int:
    """Bytes, rounded up: a share of an odd number of bytes needs a whole one."""
    return -(-value.numerator // value.denominator)


def number(value: Fraction | int) -> str:
    """A number as an article prints it: no digits that say nothing, at most two decimals."""
    exact = Fraction(value)
    text = f"{Decimal(exact.numerator) / Decimal(exact.denominator):,.2f}"
    return text.rstrip("0").rstrip(".")
