"""YAML with the line of every key, read as PyYAML's safe loader reads it, without its traps.

The nodes are composed by PyYAML (in C where it has it) and turned into values here: of a key that occurs twice the last
one counts, and a remark says so; aliases may not multiply a small file into a large structure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from vramcast.errors import Refused, refuse
from vramcast.readers.document import MAX_NODES, too_many

MAX_ALIASED_NODES = 1000
_MOST_SIGNS = 4 * MAX_NODES
"""Signs between which values may stand: more are not worth composing."""
_LONGEST_NUMBER = 1000
_MERGE = "tag:yaml.org,2002:merge"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str, name: str) -> tuple[dict[str, Any], dict[str, int], tuple[str, ...]]:
    """The mapping in `text`, the lines of its keys, and remarks; `name` is the file in messages.

    Raises:
        Refused: not YAML, empty, not a mapping at the top, too many values, or too much repeated through aliases.
    """
    if sum(text.count(sign) for sign in ",:\n") > _MOST_SIGNS:
        raise too_many(name)
    try:
        loader = _Loader(text)
        try:
            return _Reader(loader, name).document()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise _syntax(error, name) from None
    except RecursionError:
        raise refuse(f"{name} is nested too deeply") from None


def _syntax(error: yaml.YAMLError, name: str) -> Refused:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"{name}:{mark.line + 1}" if mark else name
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
    return refuse(f"{where} is not YAML: {problem}")


class _Reader:
    """One walk over the nodes of a document."""

    def __init__(self, loader: Any, name: str) -> None:
        self.loader = loader
        self.name = name
        self.lines: dict[str, int] = {}
        self.remarks: list[str] = []
        self.nodes = 0
        self.seen: set[int] = set()
        self.open: set[int] = set()
        self.repeated = 0

    def document(self) -> tuple[dict[str, Any], dict[str, int], tuple[str, ...]]:
        root = self.loader.get_single_node()
        if root is None or root.value == "":
            raise refuse(f"{self.name} is empty")
        if not isinstance(root, yaml.MappingNode):
            kind = "a list" if isinstance(root, yaml.SequenceNode) else "a single value"
            raise refuse(f"the top level of {self.name} is {kind}, not keys with values")
        content = self.value(root, "")
        return content, self.lines, tuple(self.remarks)

    def value(self, node: Any, path: str) -> Any:
        """The Python value of a node; `path` is the dotted name of its key."""
        self.count(node)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if id(node) in self.open:
            raise refuse(f"{self.where(node)}: an alias contains itself")
        self.open.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            result: Any = [self.value(item, path) for item in node.value]
        else:
            result = self.mapping(node, path)
        self.open.remove(id(node))
        return result

    def count(self, node: Any) -> None:
        """A node that is met again was reached through an alias; a bomb is made of many of these."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise too_many(self.name)
        self.repeated += id(node) in self.seen
        self.seen.add(id(node))
        if self.repeated > MAX_ALIASED_NODES:
            raise refuse(f"{self.name}: aliases repeat more than {MAX_ALIASED_NODES} values")

    def scalar(self, node: Any) -> Any:
        if len(node.value) > _LONGEST_NUMBER and not node.tag.endswith((":str", ":binary")):
            raise refuse(f"{self.where(node)}: {node.value[:40]}... is longer than any number")
        try:
            return self.loader.construct_object(node)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            # PyYAML's own constructors fail in all these ways, at `!!bool x`, `!!int ""` or a number without end.
            why = str(error) if isinstance(error, ValueError) else f"not of the type {node.tag.rpartition(':')[2]}"
            raise refuse(f"{self.where(node)}: {node.value[:40]!r} is not a value: {why}") from None

    def mapping(self, node: Any, path: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        given: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for base in self.bases(value):
                    merged = {**self.value(base, path), **merged}
                continue
            text, line = self.key(key), key.start_mark.line + 1
            if text in given:
                said = f"{path}{text} is given twice (first in line {given[text]}): the last one counts"
                self.remarks.append(f"{self.name}:{line}: {said}")
            given[text] = line
            result[text] = self.value(value, f"{path}{text}.")
        self.lines.update((f"{path}{text}", line) for text, line in given.items())
        return {**merged, **result}

    def key(self, node: Any) -> str:
        """A key as it is written: `on` stays `on`."""
        if not isinstance(node, yaml.ScalarNode):
            raise refuse(f"{self.where(node)}: a key must be a single word, not a list or mapping")
        return str(node.value)

    def bases(self, node: Any) -> Iterator[Any]:
        """The mappings that `<<` merges; of several, the first that has a key gives it."""
        for base in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if not isinstance(base, yaml.MappingNode):
                raise refuse(f"{self.where(base)}: << must name a mapping")
            yield base

    def where(self, node: Any) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"
