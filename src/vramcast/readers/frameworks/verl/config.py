"""One verl configuration while it is read: its keys, its release, and what has been made of them so far."""

from __future__ import annotations

from typing import Any

from vramcast.readers.bash.words import Gap
from vramcast.readers.config import ConfigReader
from vramcast.readers.document import Document
from vramcast.readers.frameworks.verl.defaults import RELEASES, follow, is_default
from vramcast.readers.frameworks.verl.keys import ACTOR, FSDP, MODEL, truth
from vramcast.types.job import Fact, Idle, Origin, check_value


class Config(ConfigReader):
    """The keys of a verl configuration; some have a value that is not known."""

    def __init__(self, document: Document, name: str, gaps: dict[str, tuple[Gap, ...]], version: str) -> None:
        super().__init__(document, name)
        self.gaps = gaps
        self.version = version
        self.unused_keys: dict[str, Idle] = {}

    def says(self, *keys: str) -> bool:
        """Whether one of the keys is given, null included, and none of them has an unknown value."""
        return not any(key in self.gaps for key in keys) and any(key in self.content for key in keys)

    def flag(self, key: str) -> bool | None:
        """What Python makes of a switch; None when it is not there. A text is true, whatever it says."""
        if key not in self.content:
            return None
        value = self.content[key]
        remark = f"= {_short(value)!r} is a text, which verl takes as true"
        if isinstance(value, str) and value and f"{self.where(key)}: {self.label(key)} {remark}" not in self.warnings:
            self.warn(key, remark)
        return truth(value)

    def default(self, key: str) -> Any:
        """What the key is when nobody sets it."""
        return follow(key, self.content, self.version)

    def or_default(self, key: str) -> Any:
        return self.content[key] if key in self.content else self.default(key)

    def is_default(self, key: str) -> bool:
        """Whether the value says nothing: it is verl's own, or that of the key that it stands for."""
        return is_default(self.label(key), self.content[key], self.content, self.version)

    def before(self, version: str) -> bool:
        """Whether the release is older."""
        return RELEASES.index(self.version) > RELEASES.index(version)

    def newest_of(self, name: str) -> str:
        """Which of two keys of one name counts: the actor's up to 0.7, then the engine's, which stands for the actor's
        again from 0.9 on, but for the switch of the compiler. The other one is listed as without effect."""
        actor, own = f"{ACTOR}{name}", f"{FSDP}{name}"
        if self.before("0.8.0"):
            chosen, other = actor, own
        elif self.before("0.9.0") or name == "use_torch_compile" or own in self.content:
            chosen, other = own, actor
        else:
            chosen, other = actor, own
        self.unused(other, f"verl {self.version} reads {chosen}")
        return chosen

    @property
    def has_critic(self) -> bool:
        return any(fact.path == "critic.kind" and fact.value == "model" for fact in self.facts)

    @property
    def padded(self) -> bool:
        """Whether sequences are padded; an unknown value counts as packed."""
        key = f"{MODEL}use_remove_padding"
        return key not in self.gaps and not self.or_default(key)

    def unused(self, key: str, why: str) -> None:
        """The key, if it is given, has no effect on memory; not said of verl's own value."""
        if key in self.content and not self.is_default(key):
            self.unused_keys.setdefault(key, Idle(self.label(key), self.content[key], self.where(key), why))

    def refuse_because(self, key: str, does: str) -> None:
        """The key makes another job than those that are modelled. One cause is said once, however many keys it has."""
        fact = f"{self.label(key)} = {_short(self.content[key])} is not modelled yet: it {does}"
        if all(not mistake.fact.endswith(f": it {does}") for mistake in self.mistakes.found):
            self.mistakes.add(fact, **{"from": self.where(key)})

    def instead(self, path: str, value: Any, key: str) -> None:
        """A fact that counts whatever other keys say of the path."""
        self.facts = [fact for fact in self.facts if fact.path != path]
        self.fact(path, value, key)

    def derive(self, path: str, value: Any, keys: tuple[str, ...], text: str) -> None:
        """A fact from several keys, of which those that are left out count with their default."""
        given = next(key for key in keys if key in self.content)
        with self.mistakes.collect():
            origin = Origin(self.where(given), text)
            self.facts.append(Fact(path, check_value(path, value, origin), origin))

    def assume(self, path: str, value: Any, key: str, default: str) -> None:
        """A fact that follows from a key that is left out."""
        self.facts.append(Fact(path, value, Origin(f"verl {self.version} default ({key} {default})")))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}..."


_WIDEST = 60
"""characters of a value in a message"""
