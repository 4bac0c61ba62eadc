"""A predicted memory snapshot, in the format of torch.cuda.memory._dump_snapshot: pytorch.org/memory_viz opens it.

Source: torch/csrc/cuda/memory_snapshot.cpp (the fields), torch/cuda/_memory_viz.py and torch/utils/viz/MemoryViz.js
(what reads them), torch 2.13. Frames name the tensor, its operator, the modules around it and the phase; times are
events. The same recording gives the same bytes.
"""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from sys import intern
from typing import Any

from vramcast import __version__
from vramcast.errors import refuse
from vramcast.memory.alloc_conf import INTERVALS
from vramcast.trace.allocator import AllocatorSettings
from vramcast.trace.history import Entry, History, instant_of
from vramcast.trace.recording import Recording
from vramcast.trace.replay import Heap

_PROTOCOL = 4
"""the newest that MemoryViz.js reads"""
_LARGEST = 1 << 63


def write_snapshot(
    recording: Recording,
    settings: AllocatorSettings,
    path: str,
    capacity: int | None = None,
    total: int | None = None,
) -> None:
    """Write the snapshot of a replay (arguments as there) that ends where memory runs out, whole or not at all.

    Raises:
        Refused: the file cannot be written.
    """
    content = pickle.dumps(snapshot(recording, settings, capacity, total), protocol=_PROTOCOL)
    try:
        _write(content, os.path.realpath(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(f"cannot write the snapshot {path!r}: {reason}") from None


def _write(content: bytes, path: str) -> None:
    """Beside the file first, then in its place; a pipe or a device is written to as it is."""
    replaces = os.path.isfile(path) or not os.path.exists(path)
    target = f"{path}.{os.getpid()}.part" if replaces else path
    try:
        with open(target, "wb") as file:
            file.write(content)
        if replaces:
            os.replace(target, path)
    except BaseException:
        if replaces:
            with suppress(OSError):
                os.remove(target)
        raise


def snapshot(
    recording: Recording, settings: AllocatorSettings, capacity: int | None = None, total: int | None = None
) -> dict[str, Any]:
    """The snapshot as plain data."""
    history = History(recording, Heap(recording, settings, capacity, total))
    history.run()
    return {
        "segments": history.segments(),
        "device_traces": [history.entries],
        "allocator_settings": _settings(settings),
        "external_annotations": _annotations(recording),
        "predicted": f"vramcast {__version__}: from a trace on fake tensors, no GPU was used",
    }


def _annotations(recording: Recording) -> list[Entry]:
    """Start and end of every instant, as record_function leaves them."""
    found: list[Entry] = []
    for mark, first, end in recording.spans():
        name = intern(instant_of(mark))
        if found and found[-1]["name"] == name:
            found[-1]["time_us"] = end
            continue
        found += [{"name": name, "stage": stage, "device": 0, "time_us": at}
                  for stage, at in (("START", first), ("END", end))]  # fmt: skip
    return found


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    limit = settings.max_split_size
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.text,
        "max_split_size": limit if limit < _LARGEST else limit - 2 * _LARGEST,  # as an int64
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {
            str(1 << interval): settings.roundup_power2_divisions[interval] for interval in range(INTERVALS)
        },
    }
