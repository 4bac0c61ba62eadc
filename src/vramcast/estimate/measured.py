"""What a traced model that was saved brings into a job."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.estimate.modelled import Also
from vramcast.models.arch import Arch

_SHOWN = ("torch", "transformers", "peft", "trl")


def known_beside(arch: Arch) -> Also:
    """Values that formulas do not know, and a measured model does."""
    measurement = arch.measured
    if measurement is None:
        return {}
    return {"attention": tuple(dict.fromkeys(one.modes.get("attention", "") for one in measurement.variants))}


def what_was_measured(arch: Arch) -> Iterator[str]:
    """What to know of a measured model."""
    measurement = arch.measured
    if measurement is not None:
        versions = ", ".join(f"{name} {measurement.source[name]}" for name in _SHOWN if name in measurement.source)
        yield f"{arch.name}: activations as traced with {versions}"
        yield from (f"{arch.name}: {line}" for line in measurement.assumed)
