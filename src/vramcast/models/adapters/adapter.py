"""An adapter as its configuration says it, and what counting it gives."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct

from vramcast.num import Size, total

ROOT = "base_model.model."
"""How PEFT's names of a tuned model begin; a method's shared tensors begin with `base_model.`."""
NAME = "default"
"""The name PEFT gives an adapter that is not named."""

DtypeRule: TypeAlias = Literal["adapter", "base", "fp32", "int32", "int64"]
"""adapter: the base weight's, then upcast by PEFT; base: the base weight's; or a dtype that nothing changes."""
Cast: TypeAlias = Literal["peft", "none", "trl-quantised"]
"""Who changes dtypes after the adapter is made: see `dtype_of`."""


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

    def share(self, name: str) -> float:
        """A field that holds a fraction."""
        return float(self.values.get(name) or 0)

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
    """A tensor that the adapter adds to the model."""

    name: str
    """as PEFT's model names it; "default" is the adapter's name in it"""
    shape: tuple[Size, ...]
    home: str = ""
    """the module of the base model it belongs to; "" if all adapted modules share it"""
    trains: bool = True
    dtype: DtypeRule = "adapter"
    buffer: bool = False
    """not a parameter: held in memory, in no count"""
    device: Literal["gpu", "host"] = "gpu"
    thaws: bool = False
    """frozen when made, and trained once PEFT upcasts it (cast_adapter_dtype makes it anew in its ParameterDict)"""

    @property
    def elements(self) -> Size:
        return prod(self.shape)


class Part(Struct, frozen=True):
    """What trains in one module of the base model, or in the tensors that all share (name "")."""

    name: str
    trainable: Size
    tensors: int
    dtype: DtypeRule


class AdapterCount(Struct, frozen=True):
    """What `print_trainable_parameters` prints, and the tensors behind it."""

    trainable: Size
    """elements with requires_grad"""
    total: Size
    """elements of all parameters: the base model's and the adapter's"""
    base: Size
    """elements of the base model"""
    tensors: tuple[Tensor, ...]
    """what the adapter adds, buffers included"""
    thawed: tuple[tuple[str, tuple[Size, ...]], ...]
    """tensors of the base model that train as well (`bias`): name and shape"""

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(one for one in self.tensors if not one.buffer)

    @property
    def buffers(self) -> tuple[Tensor, ...]:
        return tuple(one for one in self.tensors if one.buffer)

    def parts(self) -> list[Part]:
        """By module of the base model, in its order."""
        found: dict[str, list[Tensor]] = {}
        for one in self.parameters:
            if one.trains:
                found.setdefault(one.home, []).append(one)
        return [
            Part(name, total(one.elements for one in tensors), len(tensors), tensors[0].dtype)
            for name, tensors in found.items()
        ]

    def shapes(self) -> list[tuple[Size, ...]]:
        """Shapes of everything that trains: what gradients and optimizer states are made of."""
        own = [one.shape for one in self.parameters if one.trains]
        return [*own, *(shape for _, shape in self.thawed)]


def dtype_of(tensor: Tensor, base: str, casts: Cast = "peft") -> str:
    """The dtype that a tensor has when training begins.

    Args:
        tensor: one of an `AdapterCount`.
        base: dtype of the weights it stands beside; of quantised weights the compute dtype (bnb) or "fp32".
        casts: "peft": `get_peft_model` with autocast_adapter_dtype, its default: fp16, bf16 and fp8 become fp32. It
            acts on tuner layers only: copies of `modules_to_save`, LN tuning and adaption prompts keep the base's.
            "none": autocast_adapter_dtype=False, as TRL under ZeRO-3 without quantisation. "trl-quantised": TRL casts
            all that trains over a quantised model to bf16, without the magnitudes of DoRA.

    Source: peft 0.21 tuners_utils.cast_adapter_dtype; trl 1.16 sft_trainer.py (get_peft_model_kwargs,
    _is_quantized_model).
    """
    if tensor.dtype not in ("adapter", "base"):
        made = tensor.dtype
    elif tensor.dtype == "adapter" and casts != "none":
        made = "fp32" if base in _UPCAST else base
    else:
        made = base
    if casts == "trl-quantised" and tensor.trains and "lora_magnitude_vector" not in tensor.name:
        return "bf16"
    return made


def upcast(dtype: str) -> bool:
    """Whether PEFT upcasts adapters beside weights of this dtype."""
    return dtype in _UPCAST


_UPCAST = frozenset("fp16 bf16 fp8 fp8_e4m3 fp8_e5m2".split())


def under(home: str, *names: str) -> str:
    """The name of a tensor of the adapter in a module of the base model."""
    return ".".join([f"{ROOT}{home}", *names])


def entry(home: str, field: str, *shape: Size, trains: bool = True) -> Tensor:
    """A parameter in a ParameterDict of the tuner layer: `field.default`."""
    return Tensor(under(home, field, NAME), shape, home, trains, thaws=not trains)


def layer(home: str, field: str, *shape: Size, trains: bool = True) -> Tensor:
    """The weight of a module in a ModuleDict of the tuner layer: `field.default.weight`."""
    return Tensor(under(home, field, NAME, "weight"), shape, home, trains)


def held(home: str, field: str, *shape: Size, dtype: DtypeRule = "adapter") -> Tensor:
    """A buffer of the tuner layer."""
    return Tensor(under(home, field, NAME), shape, home, False, dtype, True)


def shared(name: str, *shape: Size, buffer: bool = False) -> Tensor:
    """A tensor that all adapted modules share."""
    return Tensor(name, shape, "", not buffer, "adapter", buffer)


def unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    """One of each name."""
    return list({one.name: one for one in tensors}.values())
