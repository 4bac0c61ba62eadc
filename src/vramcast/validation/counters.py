"""What a training run shows on its counters: each reading from the instants of a forecast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from vramcast.catalog.gpus import find_gpu
from vramcast.types.paths import Value
from vramcast.types.result import PhaseBytes, TermBytes
from vramcast.validation.reading import Skip


class Range(NamedTuple):
    """Bytes on a counter, with the ends of the range."""

    low: int
    point: int
    high: int


Counter: TypeAlias = Callable[[PhaseBytes], Range]
Read: TypeAlias = Callable[[Sequence[PhaseBytes], Mapping[str, Value]], Range]


_PARTS = {"forward": ("forward", "loss")}
"""phase of a reading -> phases of the design; the others have the same name"""


def _summed(phase: PhaseBytes, counts: Callable[[TermBytes], bool]) -> Range:
    terms = [term for term in phase.terms if counts(term)]
    return Range(
        sum(term.low_bytes for term in terms), sum(term.bytes for term in terms), sum(term.high_bytes for term in terms)
    )


def allocated(phase: PhaseBytes) -> Range:
    """`torch.cuda.memory_allocated`."""
    return _summed(phase, lambda term: term.counter == "allocated")


def reserved(phase: PhaseBytes) -> Range:
    """`torch.cuda.memory_reserved`."""
    return _summed(phase, lambda term: term.counter != "outside")


def device(phase: PhaseBytes) -> Range:
    """What the driver counts: reserved memory and what is outside PyTorch."""
    return _summed(phase, lambda term: True)


def process(phase: PhaseBytes) -> Range:
    """Reserved memory and the CUDA context, without communication buffers."""
    return _summed(phase, lambda term: term.counter != "outside" or term.name == "cuda.context")


def worst(counter: Counter, phases: Sequence[PhaseBytes]) -> Range:
    """The largest low, point and high."""
    found = [counter(phase) for phase in phases]
    return Range(*(max(one[index] for one in found) for index in range(3)))


def _peak(counter: Counter) -> Read:
    return lambda phases, job: worst(counter, phases)


def _first_step(phases: Sequence[PhaseBytes], job: Mapping[str, Value]) -> Range:
    return worst(allocated, [phase for phase in phases if phase.when == "first" and phase.name != "load"])


def _loaded(phases: Sequence[PhaseBytes], job: Mapping[str, Value]) -> Range:
    return worst(allocated, [phase for phase in phases if (phase.name, phase.instant) == ("load", "built")])


def _after_step(phases: Sequence[PhaseBytes], job: Mapping[str, Value]) -> Range:
    """Before gradients are set to None: what the step needed for a moment is gone."""
    return _without(phases, {"optimizer.step"})


def _static(phases: Sequence[PhaseBytes], job: Mapping[str, Value]) -> Range:
    """After `zero_grad`. FSDP 1 keeps its shard of the gradients until the next forward.

    Source: torch/distributed/fsdp/_flat_param.py, _reset_flat_param_grad_info_if_needed, called before a forward.
    """
    kept = job.get("shard") == "fsdp1" and job.get("gpus") != 1
    return _without(phases, {"optimizer.step", "outputs", *(() if kept else ("gradients",))})


def _without(phases: Sequence[PhaseBytes], gone: set[str]) -> Range:
    step = [phase for phase in phases if phase.name == "step" and phase.when == "steady"][-1]
    return _summed(step, lambda term: term.counter == "allocated" and term.name not in gone)


QUANTITIES: dict[str, Read] = {
    "allocated_peak": _peak(allocated),
    "reserved_peak": _peak(reserved),
    "process_peak": _peak(process),
    "device_peak": _peak(device),
    "allocated_peak_first_step": _first_step,
    "allocated_after_load": _loaded,
    "allocated_after_step": _after_step,
    "static": _static,
}
"""quantity of a reading -> its bytes"""
VERDICTS = {"oom": True, "fits": False}
"""quantity -> whether it says that memory runs out"""


def read(quantity: str, phase: str | None, phases: Sequence[PhaseBytes], job: Mapping[str, Value]) -> Range:
    """One reading. A phase means a later step: the counters were reset at its borders.

    Raises:
        Skip: a quantity that no instant shows.
    """
    if quantity not in QUANTITIES:
        raise Skip("not modelled yet")
    if phase is None or phase == "load":
        return QUANTITIES[quantity](phases, job)
    names = _PARTS.get(phase, (phase,))
    found = [one for one in phases if one.name in names and one.when == "steady"]
    if not found:
        raise Skip(f"not modelled yet: a phase {phase}")
    return QUANTITIES[quantity](found, job)


def capacity_of(job: Mapping[str, Value], stated: object) -> int:
    """Bytes of the card: what its driver reports as total, or else what the row says.

    Raises:
        Skip: neither is known.
    """
    if job.get("gpu"):
        return find_gpu(str(job["gpu"])).total_bytes.value
    if isinstance(stated, int):
        return stated
    raise Skip("the source does not say on which card")
