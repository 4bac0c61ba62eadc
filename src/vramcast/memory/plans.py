"""Passes as functions of sizes: a tape is run once for the modes of a job, on sizes that come later.

The tape's operators, and so its births and deaths, depend on modes alone. Run on `Later` sizes it leaves, instead of
numbers, the sums and peaks that they are made of; compiled to a function, a second layout of the same job costs
microseconds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar, cast

from msgspec import structs

from vramcast.memory.seat import SIZES, Seat
from vramcast.models.arch import Arch
from vramcast.num import Later, Named

Passes = TypeVar("Passes", bound="tuple[Any, ...]")
_APART = frozenset("role state phase instant inner when process leads gpu engine memo arch".split())
"""fields of a seat that no pass reads"""
_MODES = tuple(name for name in Seat.__struct_fields__ if name not in SIZES and name not in _APART)
_MOST = 512
_SIGNS = {operator.add: "+", operator.sub: "-", operator.mul: "*"}

Plan = Callable[[Seat], Any]
_plans: dict[tuple[Any, ...], _Planned] = {}


def planned(seat: Seat, what: str, make: Callable[[Seat], Passes]) -> Passes:
    """`make(seat)`, by the plan of the seat's modes: made when they come with second sizes.

    Named sizes are told from the tape itself, whose texts they carry; a traced model has rows for some sizes only.
    """
    if isinstance(seat.sequences, (Named, Later)) or seat.arch.measured is not None:
        return make(seat)
    key = (what, id(seat.arch), *seat.once("modes", lambda: _modes(seat)))
    found = _plans.get(key)
    if found is None or found.arch is not seat.arch:
        if len(_plans) >= _MOST:
            _plans.clear()
        found = _plans[key] = _Planned(seat.arch, _sizes(seat), make(seat))
    if found.plan is None:
        if found.sizes == _sizes(seat):
            return found.passes
        later = structs.replace(seat, memo={}, **{name: Later.of(name) for name in SIZES})
        found.plan = compiled(make(later))
    return found.plan(seat)


class _Planned:
    """Passes of some modes: as numbers for the first sizes, for one forecast asks the same often; a plan, which costs
    more to make than passes, from the second sizes on."""

    def __init__(self, arch: Arch, sizes: tuple[Any, ...], passes: Any) -> None:
        self.arch = arch
        self.sizes = sizes
        self.passes = passes
        self.plan: Plan | None = None


def _sizes(seat: Seat) -> tuple[Any, ...]:
    """The seat's sizes, to be compared; an array equals nothing."""
    values = [getattr(seat, name) for name in SIZES]
    return tuple([value if isinstance(value, int) else object() for value in values])


def _modes(seat: Seat) -> tuple[Any, ...]:
    values = [getattr(seat, name) for name in _MODES]
    packing = seat.packing
    if packing is not None:
        values[_MODES.index("packing")] = (*structs.astuple(packing)[1:], *sorted(packing.formats.items()))
    return (seat.records, seat.state == "generate", *values)


def compiled(passes: Any) -> Plan:
    """A function from a seat to the same tuple with the seat's sizes in it."""
    writer = _Writer()
    result = writer.text(passes)
    lines = "\n  ".join([*writer.lines, f"return {result}"])
    exec(f"def plan(seat):\n  {lines}", writer.names)  # our own text: names of functions and fields
    return cast("Plan", writer.names["plan"])


class _Writer:
    """Sizes as Python text, each said once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.known: dict[tuple[Any, ...], str] = {}
        self.written: dict[int, str] = {}
        """by identity: sums share their parts, and the passes keep all of them alive while they are written"""

    def text(self, value: Any) -> str:
        if isinstance(value, Later):
            found = self.written.get(id(value))
            if found is None:
                found = self.written[id(value)] = self._later(value)
            return found
        if isinstance(value, tuple):
            parts = [self.text(part) for part in cast("tuple[Any, ...]", value)]
            kind = cast("Any", value).__class__
            joined = "".join(f"{part}, " for part in parts)
            return f"({joined})" if kind is tuple else f"{self._constant(kind)}({joined})"
        return repr(value) if isinstance(value, (int, str)) else self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{id(value)}"
        self.names[name] = value
        return name

    def _later(self, value: Later) -> str:
        made = [self.text(one) for one in value.arguments]
        key = (value.function, *made)
        if key not in self.known:
            name = self.known[key] = f"v{len(self.known)}"
            sign = _SIGNS.get(value.function)
            if value.function is getattr:
                text = f"seat.{value.arguments[0]}"
            elif sign is not None:
                text = f"{made[0]} {sign} {made[1]}"
            else:
                text = f"{self._constant(value.function)}({', '.join(made)})"
            self.lines.append(f"{name} = {text}")
        return self.known[key]
