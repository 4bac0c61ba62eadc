"""Seats: what one role does at one instant, from its settings."""

from __future__ import annotations

from msgspec import structs

from vramcast.algorithms.table import Instant, Phase, When
from vramcast.estimate.resolve import Resolved
from vramcast.memory.seat import Seat, named
from vramcast.types.settings import Settings
from vramcast.units import PPM, ppm


class Seats:
    """Makes the seats of one role; seats of equal work share what was computed for them. With `names`, sizes carry
    their symbols and every formula its text."""

    def __init__(self, job: Resolved, role: str, *, names: bool = False) -> None:
        self.role = role
        self.names = names
        self.settings = job.role(role)
        self.base = _base(job, role, self.settings)
        self.memos: dict[tuple[object, ...], dict[str, object]] = {}

    def seat(self, phase: Phase, instant: Instant, when: When) -> Seat:
        """The seat at an instant; the role rests when the table does not name it."""
        state = instant.states.get(self.role, "rest")
        work = self._work(instant.name)
        memo = self.memos.setdefault(tuple(sorted(work.items())), {})
        seat = structs.replace(
            self.base, state=state, phase=phase.name, instant=instant.name, when=when, memo=memo, **work
        )
        return named(seat) if self.names else seat

    def _work(self, instant: str) -> dict[str, int]:
        """Sizes of this phase: generation reads a prompt, then single tokens."""
        total, prompt = _lengths(self.settings)
        if instant == "decode":
            return {"seq_len": 1, "cached_len": total}
        if instant == "prefill":
            return {"seq_len": prompt, "cached_len": prompt}
        return {}


def _lengths(settings: Settings) -> tuple[int, int]:
    """(all tokens of a sequence, those of its prompt). Without a prompt length all tokens are read at once."""
    if settings.prompt_len and settings.response_len:
        return settings.prompt_len + settings.response_len, settings.prompt_len
    if settings.response_len:
        return settings.seq_len, max(settings.seq_len - settings.response_len, 1)
    return settings.seq_len, settings.prompt_len or settings.seq_len


def _base(job: Resolved, role: str, settings: Settings) -> Seat:
    trains = settings.algorithm != "inference"
    fused = settings.loss == "fused"
    return Seat(
        role=role,
        state="rest",
        phase="",
        instant="",
        when="first",
        arch=job.arch,
        gpu=job.gpu,
        sequences=settings.micro_batch,
        seq_len=settings.seq_len,
        scored_len=_scored(settings) if fused else settings.seq_len,
        labels_unknown=settings.labelled_frac is None,
        lora_rank=settings.lora_rank,
        tuning="frozen" if not trains else ("lora" if settings.tuning == "lora" else "full"),
        weights_dtype=settings.weights_dtype,
        compute_dtype=settings.compute_dtype if settings.autocast else settings.weights_dtype,
        autocast=settings.autocast and trains,
        state_dtype=settings.state_dtype or "",
        adapter_dtype=settings.lora_dtype,
        adapter_dropout=settings.lora_dropout > 0,
        targets=_targets(job, settings),
        optimizer=settings.optimizer,
        optimizer_impl=settings.optimizer_impl,
        accumulates=trains and settings.accumulation > 1,
        recompute="full" if settings.recompute == "full" and trains else "none",
        reentrant=settings.recompute_reentrant,
        loss="fused" if fused else "full",
        attention=settings.attention or "flash",
        caches=not trains,
        recipe=job.recipe,
        expandable="expandable_segments:true" in settings.allocator.lower().replace(" ", ""),
    )


def _scored(settings: Settings) -> int:
    """Tokens of a sequence with a label: the first one never has any, the rest by `labelled_frac`."""
    share = ppm(round(settings.labelled_frac, 6)) if settings.labelled_frac is not None else PPM
    return max(-(-(settings.seq_len - 1) * share // PPM), 1)


def _targets(job: Resolved, settings: Settings) -> frozenset[str]:
    if settings.tuning != "lora" or settings.algorithm == "inference":
        return frozenset()
    named = settings.lora_targets or list(job.arch.default_targets)
    return frozenset(job.arch.linears) if "all-linear" in named else frozenset(named)
