"""A recording on a card: how the allocator gets through it, and in which words that is told."""

from __future__ import annotations

from typing import NamedTuple

from vramcast.catalog.gpus import Gpu
from vramcast.trace.allocator import AllocatorSettings
from vramcast.trace.recording import Recording
from vramcast.trace.replay import OutOfMemory, Replay, replay
from vramcast.trace.timeline import timeline
from vramcast.types.result import PhaseBytes, Verdict


class Judged(NamedTuple):
    """Without a card named there is no verdict, and nothing fails."""

    recording: Recording
    settings: AllocatorSettings
    replayed: Replay
    failed: OutOfMemory | None
    """where the card is full, if it is"""
    verdict: Verdict | None
    phases: list[PhaseBytes]

    @property
    def worst(self) -> PhaseBytes:
        """The instant that needs most."""
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def warnings(self) -> list[str]:
        retries = self.replayed.retries
        often = "once" if retries == 1 else f"{retries} times"
        slow = [f"it fits because cached blocks are freed {often}: slow"] if retries else []
        return [*slow, *self.recording.assumed]


def judge(recording: Recording, settings: AllocatorSettings, gpu: Gpu, capacity: int | None) -> Judged:
    """Replay a recording within `capacity` bytes of a card, the CUDA context counted; None: without end.

    fits: also beside the largest context that was measured; does_not_fit: not even beside the smallest. Where it ends
    early, the timeline is of a card without end.
    """
    if capacity is None:
        return _told(recording, settings, gpu, replay(recording, settings), None, None)
    context = gpu.context_bytes
    tried = {
        size: replay(recording, settings, capacity - size, gpu.total_bytes.value)
        for size in {context.low, context.point, context.high}
    }
    usual = tried[context.point]
    whole = usual if usual.oom is None else replay(recording, settings)
    if tried[context.high].oom is None:
        verdict: Verdict = "fits"
    else:
        verdict = "does_not_fit" if tried[context.low].oom is not None else "tight"
    return _told(recording, settings, gpu, whole, usual.oom, verdict)


def _told(
    recording: Recording,
    settings: AllocatorSettings,
    gpu: Gpu,
    replayed: Replay,
    failed: OutOfMemory | None,
    verdict: Verdict | None,
) -> Judged:
    return Judged(recording, settings, replayed, failed, verdict, timeline(recording, replayed, gpu))
