"""`--a-b=1`, `--a_b 1`, `--flag` and `--no_flag` as keys with values, in the way of Hugging Face's argument parser."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vramcast.errors import Mistakes
from vramcast.readers.bash.words import EMPTY, Gap, Word
from vramcast.readers.document import Document
from vramcast.readers.hydra import scalar
from vramcast.types.job import Fact, Idle, Missing, Origin, Understanding, Unread

_NUMBER = re.compile(r"-\.?\d.*")
_LISTS = frozenset(
    "lora_target_modules lora_modules_to_save lora_target_parameters reward_funcs reward_weights loss_type "
    "loss_weights report_to label_names include_for_metrics optim_target_modules".split()
)
"""Keys that take several values."""
_CONFIGURATIONS = (".yaml", ".yml", ".json")
_MOST_SAID, _LONGEST_SAID = 10, 60


class Flags(NamedTuple):
    """Keys with values and lines; a key whose value is not known has gaps instead."""

    values: dict[str, Any]
    lines: dict[str, int]
    gaps: dict[str, tuple[Gap, ...]]
    others: Sequence[Word] = ()
    """Words that are neither options nor values of one."""

    def refuse_others(self, name: str) -> None:
        """Hugging Face's parser stops at words that it does not know; `name` is the script in messages.

        Raises:
            Refused: with every such word.
        """
        mistakes = Mistakes()
        for word in self.others[:_MOST_SAID]:
            what = word.text if word.text or not word.gaps else word.gaps[0].name
            mistakes.add(f"{what[:_LONGEST_SAID]!r} belongs to no option", **{"from": f"{name}:{word.line}"})
        if len(self.others) > _MOST_SAID:
            mistakes.add(f"{len(self.others) - _MOST_SAID} more words belong to no option", **{"from": name})
        mistakes.done()

    def part(self, wanted: Callable[[str], bool]) -> Flags:
        """The flags with the keys that are wanted."""
        values = {key: value for key, value in self.values.items() if wanted(key)}
        lines = {key: line for key, line in self.lines.items() if wanted(key)}
        return Flags(values, lines, {key: gaps for key, gaps in self.gaps.items() if wanted(key)})


def read_flags(words: Sequence[Word], known: Callable[[str], bool]) -> Flags:
    """The options among `words`; `known` tells a key `no_x` from the negation of `x`, and which keys have one value.

    A configuration file without an option before it is read as with `--config`, as scripts with TRL's and Hugging
    Face's parsers do (`accelerate launch train.py config.yaml`).
    """
    others: list[Word] = []
    found = Flags({}, {}, {}, others)
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if not word.text.startswith("-"):
            if word.text.endswith(_CONFIGURATIONS) and not word.gaps and "config" not in found.lines:
                found.values["config"], found.lines["config"] = word.text, word.line
            elif word.text or any(gap.why != EMPTY for gap in word.gaps):
                others.append(word)
            continue
        written, equals, text = word.text.lstrip("-").partition("=")
        key = written.replace("-", "_")
        values = [Word(text, word.line, word.gaps)] if equals else _values(rest, key in _LISTS or not known(key))
        if not values and key.startswith("no_") and known(key[3:]) and not known(key):
            key, value = key[3:], False
        else:
            value = _value(key, values)
        found.lines[key] = word.line
        gaps = tuple(gap for value in values for gap in value.gaps)
        if gaps:
            found.gaps[key] = gaps
            found.values.pop(key, None)
        else:
            found.values[key] = value
            found.gaps.pop(key, None)
    return found


def _values(rest: deque[Word], several: bool) -> list[Word]:
    """The words behind an option that are its values; they leave `rest`."""
    values: list[Word] = []
    while rest and (not values or several):
        if rest[0].text.startswith("-") and not _NUMBER.fullmatch(rest[0].text):
            break
        values.append(rest.popleft())
    return values


def _value(key: str, values: list[Word]) -> Any:
    if len(values) > 1:
        return [scalar(word.text) for word in values]
    return scalar(values[0].text) if values else True


def beside(understood: Understanding, file: Document, own: set[str], script: str, name: str) -> Understanding:
    """Give what a file said, and no flag of the script (`own`) said again, the origin of the file `name`.

    Both were read together, because a command line's flags are merged over the keys of the file that it names.
    """

    def of_file(key: str) -> bool:
        return key.partition(".")[0] in file.content and key not in own

    def where(key: str) -> str:
        return f"{name}:{file.lines[key]}" if key in file.lines else name

    facts = [
        Fact(fact.path, fact.value, Origin(where(fact.origin.key), fact.origin.key))
        if of_file(fact.origin.key)
        else fact
        for fact in understood.facts
    ]
    unread, no_effect = (
        [Unread(left.key, where(left.key)) if of_file(left.key) else left for left in keys]
        for keys in (understood.unread, understood.no_effect)
    )
    missing = [Missing(lack.path, _moved(lack.where, f"{script}  ", of_file, where)) for lack in understood.missing]
    warnings = [*file.remarks] + [_moved(text, f"{script}: ", of_file, where) for text in understood.warnings]
    idle = [
        Idle(item.key, item.value, where(item.key), item.why) if of_file(item.key) else item for item in understood.idle
    ]
    return Understanding(facts, unread, warnings, missing, idle=idle, no_effect=no_effect)


def _moved(text: str, start: str, of_file: Callable[[str], bool], where: Callable[[str], str]) -> str:
    """A remark that begins with the script and a key, with the key's own place."""
    key = text.removeprefix(start).partition(" ")[0]
    return f"{where(key)}{start[-2:]}{text.removeprefix(start)}" if text.startswith(start) and of_file(key) else text
