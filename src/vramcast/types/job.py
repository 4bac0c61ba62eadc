"""A job: the values the user asked for. Where each came from (its facts) lives beside it, never in a job file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from vramcast.errors import Mistake, Mistakes, Refused, bounded, refuse
from vramcast.types.paths import PATHS, Value, find, read_value, write_value
from vramcast.types.settings import Settings

_DEEPEST = 8
"""tables in tables: a path has three or four parts"""


class Origin(Struct, frozen=True):
    """Where a value came from: a file and line, a flag, a framework's default, a rule."""

    where: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.where}  {self.key}" if self.key else self.where

    @property
    def is_default(self) -> bool:
        """Nobody said it: a reader added a default of the framework."""
        return not self.key and (" default (" in self.where or self.where.startswith("assumed"))


class Fact(Struct, frozen=True):
    """`path = value`, and who said so."""

    path: str
    value: Value
    origin: Origin


class Unread(Struct, frozen=True):
    """A key that was found and not understood."""

    key: str
    where: str

    def __post_init__(self) -> None:
        structs.force_setattr(self, "key", bounded(self.key))


class Idle(Struct, frozen=True):
    """A key that was understood and that no memory depends on."""

    key: str
    value: Value
    where: str
    why: str


class Job(Struct, frozen=True):
    """`[role.]path` → value, exactly what was asked for, nothing filled in."""

    values: dict[str, Value]

    def to_file(self) -> dict[str, Value]:
        """The content of a job file; `Job.of` reads it back to an equal job."""
        return {name: write_value(find(name)[1], value) for name, value in self.values.items()}

    @staticmethod
    def of(content: Mapping[str, object]) -> Job:
        """A job from flat paths or nested tables.

        Raises:
            Refused: with every unknown path and wrong value.
        """
        mistakes = Mistakes()
        values: dict[str, Value] = {}
        for name, raw in flatten(content):
            if name in values:
                mistakes.add(f"{name} is set twice", **{"from": "job file"})
            with mistakes.collect():
                values[name] = check_value(name, raw, Origin("job file"))
        mistakes.done()
        return Job(values)


def check_value(name: str, raw: object, origin: Origin) -> Value:
    """One written value, typed.

    Raises:
        Refused: naming the path, where the value came from and what is allowed.
    """
    try:
        _, path = find(name)
    except Refused as refused:
        refused.mistakes[0].said.setdefault("from", str(origin))
        raise Refused(refused.mistakes) from None
    try:
        return read_value(path, raw)
    except ValueError as error:
        raise refuse(f"{name}: {error}", **{"from": str(origin), "allowed": path.allowed}) from None


def flatten(content: Mapping[str, object], prefix: str = "", deep: int = 0) -> Iterable[tuple[str, object]]:
    """Nested tables → dotted paths; a table that is itself a value (`lora.rank_pattern`) stays whole, and so does one
    that is deeper than any path."""
    for key, value in content.items():
        name = f"{prefix}{key}"
        role_free = name.split(".", 1)[-1]
        is_value = any(known in PATHS and PATHS[known].kind == "table" for known in (name, role_free))
        if isinstance(value, Mapping) and not is_value and deep < _DEEPEST:
            yield from flatten(value, f"{name}.", deep + 1)  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield name, value


class Missing(Struct, frozen=True):
    """A value that only the user can give, and what showed that it is needed."""

    path: str
    where: str


class Understanding(Struct):
    """What the readers made of flags and files: facts, strongest first, and what they could not read."""

    facts: list[Fact]
    unread: list[Unread] = []
    warnings: list[str] = []
    missing: list[Missing] = []
    mistakes: list[Mistake] = []
    """wrong flags and files, kept so that they are reported with whatever else is wrong"""
    misread: bool = False
    """a file was refused, so what it says is not among the facts"""
    idle: list[Idle] = []
    no_effect: list[Unread] = []
    """keys that never change memory"""

    def __add__(self, weaker: Understanding) -> Understanding:
        return Understanding(
            self.facts + weaker.facts,
            self.unread + weaker.unread,
            self.warnings + weaker.warnings,
            self.missing + weaker.missing,
            self.mistakes + weaker.mistakes,
            self.misread or weaker.misread,
            self.idle + weaker.idle,
            self.no_effect + weaker.no_effect,
        )

    def winners(self) -> dict[str, Fact]:
        """Path → the fact that counts: the first said of it."""
        chosen: dict[str, Fact] = {}
        for fact in self.facts:
            chosen.setdefault(fact.path, fact)
        return chosen

    def overridden(self) -> list[tuple[Fact, Fact]]:
        """(fact that lost, fact that won), where the two differ."""
        chosen = self.winners()
        return [(fact, chosen[fact.path]) for fact in self.facts if fact.value != chosen[fact.path].value]

    def job(self) -> Job:
        return Job({path: fact.value for path, fact in self.winners().items()})


def settings_of(values: Mapping[str, Value], role: str = "policy") -> Settings:
    """The complete settings of one role: its own values, then the policy's, then the defaults of the path table."""
    chosen: dict[str, Value] = {}
    for name, value in values.items():
        owner, path = find(name)
        if owner == role or (not owner and f"{role}.{path.name}" not in values):
            chosen[path.attribute] = value
    return structs.replace(Settings(), **chosen)
