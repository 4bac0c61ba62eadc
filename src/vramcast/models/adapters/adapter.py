"""An adapter as its configuration says it, and what counting it gives."""

from __future__ import annotations

from math import prod
from typing import Any, cast

from msgspec import Struct

from vramcast.num import Size


class Adapter(Struct, frozen=True):
    """One adapter: its method and every field of that method's configuration, defaults filled in."""

    method: str
    """PEFT's name of the method: LORA, VERA, PREFIX_TUNING …"""
    values: dict[str, Any]
    source: str
    """where it was said: a file, or the paths of a job"""
    paths: dict[str, str] = {}
    """field → what the user calls it, where that is another name"""

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name)

    def whole(self, name: str) -> int:
        """A field that holds a whole number; 0 where it holds nothing."""
        return int(self.values.get(name) or 0)

    def flag(self, name: str) -> bool:
        return bool(self.values.get(name))

    def names(self, name: str) -> list[str]:
        """A field that holds a list of names; empty where it holds nothing."""
        value = self.values.get(name)
        return [str(one) for one in cast("list[Any]", value)] if isinstance(value, list) else []

    def table(self, name: str) -> dict[str, Any]:
        """A field that holds an object; empty where it holds nothing."""
        value = self.values.get(name)
        return cast("dict[str, Any]", value) if isinstance(value, dict) else {}

    def path(self, name: str) -> str:
        return self.paths.get(name, name)

    def with_values(self, **values: Any) -> Adapter:
        return Adapter(self.method, {**self.values, **values}, self.source, self.paths)


class Tensor(Struct, frozen=True):
    """A tensor that trains."""

    home: str
    """the module of the base model it belongs to"""
    shape: tuple[Size, ...]
    added: bool = True
    """the adapter adds it; else it is the base model's own (`bias`)"""

    @property
    def elements(self) -> Size:
        return prod(self.shape)


class AdapterCount(Struct, frozen=True, tag="adapter"):
    """What `print_trainable_parameters` prints, and where it is."""

    trainable: Size
    """elements with requires_grad"""
    total: Size
    """elements of all parameters: the base model's and the adapter's"""
    modules: dict[str, Size]
    """last name of the adapted modules ("" for tensors that all share) -> elements that train"""
