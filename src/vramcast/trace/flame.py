"""What lives at an event, by module: lines for a flame graph, and a tree for the terminal."""

from __future__ import annotations

from vramcast.trace.recording import Recording, Storage
from vramcast.units import gib

_NO_MODULE = "(no module)"
_LESS = "(less)"


def live(recording: Recording, event: int) -> list[Storage]:
    """Storages that live after `event`, in the order in which they were born; none after -1."""
    found: dict[int, Storage] = {}
    for code in recording.events[: event + 1]:
        if code & 1:  # a death, or the event of an empty cache
            found.pop(code >> 1, None)
        else:
            found[code >> 1] = recording.storages[code >> 1]
    return list(found.values())


def folded(recording: Recording, event: int) -> list[str]:
    """`module;path;operator [purpose] bytes` of what lives after `event`, sorted: flamegraph.pl, inferno and speedscope
    read it. The bytes are those that were asked for."""
    stacks: dict[str, int] = {}
    for storage in live(recording, event):
        leaf = f"{recording.names[storage.op]} [{storage.purpose}]"
        stack = ";".join(map(_clean, [*_path(recording, storage), leaf]))
        stacks[stack] = stacks.get(stack, 0) + storage.bytes
    return [f"{stack} {size}" for stack, size in sorted(stacks.items()) if size]


def tree(recording: Recording, event: int, depth: int = 5, least: int = 50) -> list[str]:
    """The same as a short text. Numbered modules are one (`layers × 28`); what is less than 1/`least` of everything
    is put together."""
    root = _Node()
    for storage in live(recording, event):
        if storage.bytes:
            root.add(_path(recording, storage), storage.purpose, storage.bytes)
    return [f"{gib(root.size):>10}  everything", *root.lines(depth, root.size // least, "  ")]


class _Node:
    """A module with what lives in it and below."""

    def __init__(self) -> None:
        self.size = 0
        self.indices: set[str] = set()
        self.below: dict[str, _Node] = {}

    def add(self, path: list[str], purpose: str, size: int) -> None:
        node = self
        node.size += size
        for part in path:
            if part.isdecimal():
                node.indices.add(part)
                continue
            node = node.below.setdefault(part, _Node())
            node.size += size
        leaf = node.below.setdefault(f"[{purpose}]", _Node())
        leaf.size += size

    def lines(self, depth: int, least: int, indent: str) -> list[str]:
        if not depth:
            return []
        found: list[str] = []
        less = 0
        for name, node in sorted(self.below.items(), key=lambda item: (-item[1].size, item[0])):
            if node.size < least:
                less += node.size
                continue
            times = f" × {len(node.indices)}" if node.indices else ""
            found += [f"{gib(node.size):>10}{indent}  {name}{times}", *node.lines(depth - 1, least, indent + "  ")]
        if less and found:
            found.append(f"{gib(less):>10}{indent}  {_LESS}")
        return found


def _path(recording: Recording, storage: Storage) -> list[str]:
    module = recording.names[storage.module]
    return module.split(".") if module else [_NO_MODULE]


def _clean(part: str) -> str:
    """Text that cannot be taken for the end of a frame or a line."""
    return " ".join(part.replace(";", ":").split())
