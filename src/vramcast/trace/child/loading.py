"""How weights come onto the card when Transformers loads them there (`device_map`): order, staging, packing.

The allocator keeps the holes that this leaves, so `max_memory_reserved` depends on it, and, by blocks that are a little
too large, `memory_allocated` too.

Source: transformers 5 core_model_loading.py convert_and_load_state_dict_in_model, modeling_utils.py
caching_allocator_warmup.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vramcast.trace.child.packed import is_packed, packed_bytes, packed_weight
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import Packed

WORKERS = 4
"""threads that read tensors: core_model_loading.py GLOBAL_WORKERS, on a host of four cores or more"""


PACKING = 1 << 19
"""bytes that a thread reads while the main thread packs one tensor: half a millisecond of Python and launches, beside
conversion from bf16 to fp16 on a core at about 1 GB/s"""


class Entry(NamedTuple):
    """A tensor of the checkpoint and its place in the model."""

    name: str
    module: torch.nn.Module
    meta: torch.Tensor
    packed: bool


def load(model: Any, packed: Packed | None, mode: FakeTensorMode, tracker: Tracker) -> None:
    """Read the weights of a model on the meta device, in place; adapters and buffers that no file has stay there.

    Four threads put tensors onto the card, in the order of their names; the main thread waits for them in that order
    and packs them. So up to four plain tensors wait beside those that are packed, and more while a large one comes.
    """
    entries = sorted(_entries(model, packed), key=lambda entry: natural(entry.name))
    made: dict[int, Any] = {}
    waiting: dict[int, torch.Tensor] = {}
    with mode, tracker:
        _warm_up(entries, packed)
        for index, arrives in schedule([(entry.meta.nbytes, entry.packed) for entry in entries]):
            entry = entries[index]
            with _running(tracker, entry):
                if arrives:
                    waiting[index] = _staged(entry, packed, tracker)
                else:
                    made[id(entry.meta)] = _settled(entry, waiting.pop(index), packed, tracker)
    _put(model, made)


def move(model: Any, mode: FakeTensorMode, tracker: Tracker) -> None:
    """Put a model on the meta device onto the card as `model.cuda()` does: one parameter after the other."""
    made: dict[int, Any] = {}
    with mode, tracker:
        for entry in _entries(model, None):
            with _running(tracker, entry):
                tensor = torch.empty(entry.meta.shape, dtype=entry.meta.dtype)
            tracker.relabel(tensor, "weight")
            made[id(entry.meta)] = torch.nn.Parameter(tensor, entry.meta.requires_grad)
    _put(model, made)


def adapters(model: Any, dtypes: Sequence[torch.dtype], mode: FakeTensorMode, tracker: Tracker) -> None:
    """Make the adapters of a model on the meta device, all in the first dtype, and cast them one after the other.

    Source: peft/tuners/tuners_utils.py _move_adapter_to_device_of_base_layer: in the dtype of the base, on a packed one
    in fp32; cast_adapter_dtype: then fp32. trl/trainer/sft_trainer.py: bf16 on a packed base.
    """
    made: dict[int, Any] = {}
    with mode, tracker:
        for name, old in [(name, old) for name, old in model.named_parameters() if "lora_" in name]:
            tensor = torch.empty(old.shape, dtype=dtypes[0])
            tracker.relabel(tensor, "adapter", name.rpartition(".")[0])
            made[id(old)] = torch.nn.Parameter(tensor, old.requires_grad)
        for dtype in dtypes[1:]:
            for parameter in made.values():
                parameter.data = parameter.data.to(dtype)
                tracker.relabel(parameter, "adapter")
    _put(model, made)


def _put(model: Any, made: dict[int, Any]) -> None:
    """Replace parameters by what was made of them, everywhere."""
    for module in model.modules():
        for name, old in module._parameters.items():
            if id(old) in made:
                module._parameters[name] = made[id(old)]


def schedule(tensors: Sequence[tuple[int, bool]], workers: int = WORKERS) -> Iterator[tuple[int, bool]]:
    """(tensor, whether it arrives; if not, it is used) in time, for (bytes, packed) of each tensor.

    A thread takes the next tensor as soon as it is through with one, and its memory on the card first of all. Reading
    takes as long as there are bytes. The main thread waits for the tensors in their order and packs them. Which thread
    is faster than the other is not known, so two runs of one job can differ by some MB.
    """
    threads = [0] * workers
    times: list[tuple[int, bool, int]] = []
    used = 0
    for index, (size, packed) in enumerate(tensors):
        start = heappop(threads)
        heappush(threads, start + size)
        used = max(used, start + size) + (PACKING if packed else 0)
        times += [(start, False, index), (used, True, index)]
    for _, is_used, index in sorted(times):
        yield index, not is_used


def natural(name: str) -> list[tuple[int, int, str]]:
    """The checkpoint's order: names with their numbers as numbers (core_model_loading.py: dot_natural_key)."""
    name = name.removeprefix("base_model.model.").replace(".base_layer.", ".")  # what PEFT adds
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]


def _entries(model: Any, packed: Packed | None) -> Iterator[Entry]:
    """Parameters that the checkpoint has, each once: a tied one by its first name, adapters not at all."""
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            path, _, attribute = name.rpartition(".")
            module = model.get_submodule(path)
            yield Entry(name, module, parameter, packed is not None and is_packed(module, attribute))


def _warm_up(entries: list[Entry], packed: Packed | None) -> None:
    """One block as large as all tensors as they will be, which is given back at once: the segment stays."""
    size = sum(
        packed_bytes(packed, entry.meta.numel()) if packed is not None and entry.packed else entry.meta.nbytes
        for entry in entries
    )
    torch.empty(size // 2, dtype=torch.float16)


def _staged(entry: Entry, packed: Packed | None, tracker: Tracker) -> torch.Tensor:
    """A tensor as a thread puts it onto the card; of a packed checkpoint that is the parameter itself."""
    if packed is not None and packed.ready and entry.packed:
        with tracker.paused():
            return torch.empty(entry.meta.shape, dtype=entry.meta.dtype)
    return torch.empty(entry.meta.shape, dtype=entry.meta.dtype)


def _settled(entry: Entry, staged: torch.Tensor, packed: Packed | None, tracker: Tracker) -> Any:
    """What the main thread makes of a tensor that has arrived; a plain one that is packed goes after it."""
    if packed is not None and entry.packed:
        return packed_weight(entry.module, staged, packed, tracker)
    tracker.relabel(staged, "weight")
    return torch.nn.Parameter(staged, entry.meta.requires_grad)


@contextmanager
def _running(tracker: Tracker, entry: Entry) -> Generator[None]:
    tracker.modules.append(entry.name.rpartition(".")[0])
    try:
        yield
    finally:
        tracker.modules.pop()
