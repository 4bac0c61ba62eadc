"""A traced model as a file: the job's step at several sizes, its tensors matched and their bytes as functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec import structs

from vramcast.algorithms.table import POLICY
from vramcast.catalog.dtypes import BYTES
from vramcast.catalog.models import ModelRow, model_config
from vramcast.errors import Refused, refuse
from vramcast.estimate import Resolved, edited, resolve
from vramcast.estimate.seats import Seats
from vramcast.estimate.timeline import timeline
from vramcast.memory.measured import modes_of
from vramcast.memory.units import held_trainable, stored_weights
from vramcast.models.extents import Sizes
from vramcast.models.measured import Layers, Measured, Measurement, Part, Parts
from vramcast.models.saved import SavedArch, content_of, saved, saved_arch
from vramcast.trace.flame import live
from vramcast.trace.judged import Judged
from vramcast.trace.measure.cut import CutBatch, cut
from vramcast.trace.measure.fit import Fitter, difference
from vramcast.trace.measure.part import Cut
from vramcast.trace.measure.sizes import Range, range_of, sizes_in
from vramcast.trace.question import ALSO, Question, own_code, question_of
from vramcast.trace.recording import Recording
from vramcast.types.job import Understanding
from vramcast.types.result import PhaseBytes

Record = Callable[[Question], Recording]
_BATCHES = 2
"""micro-batches of a traced step: one whose gradients are new, one that adds to them"""
_LAYERS = 3
"""the least: a block between the first and the last one"""


class Apart(NamedTuple):
    """Where a saved model and its own trace differ most."""

    share: float
    phase: str
    instant: str


def measure(said: Understanding, record: Record, *, trust_remote_code: bool = False) -> SavedArch:
    """Trace a job at several sizes, with and without recomputation, and put what its blocks and ends allocate into a
    file.

    Raises:
        Refused: the job cannot be traced, its blocks differ, or a size does not follow from the others.
    """
    job = resolve(said, ALSO, programs=False)
    row = model_config(str(job.settings.model))
    _check(job)
    known = range_of(row.config, job.settings.seq_len, int(job.arch.max_len), row.where)
    ways = [_Way(said, recompute, row, record, trust_remote_code) for recompute in _recomputes(job)]
    variants = tuple(one for way in ways for one in way.measured(known))
    measurement = Measurement(
        framework=str(job.facts["framework"].value),
        source=ways[0].versions,
        assumed=tuple(dict.fromkeys(line for way in ways for line in way.assumed)),
        variants=variants,
    )
    return saved(row.id, row.config, job.arch, measurement)


class _Way:
    """A job with one way of recomputing, traced at several sizes."""

    def __init__(self, said: Understanding, recompute: str, row: ModelRow, record: Record, trusts: bool) -> None:
        self.job = resolve(edited(said, {"recompute": recompute}, "traced both ways"), ALSO, programs=False)
        self.question = question_of(self.job, row.config, code=own_code(row, trusted=trusts))
        self.record = record
        self.versions: dict[str, str] = {}
        self.assumed: list[str] = []

    def measured(self, known: Range) -> list[Measured]:
        """What was measured; where one sequence is run in another way than several, each of the two that can be."""
        try:
            return [self._at(known)]
        except Refused:
            own, other = known.one(), known.several()
            if self.job.settings.micro_batch > 1:
                own, other = other, own
            found = [self._at(own)]
            with suppress(Refused):
                found.append(self._at(other))
            return found

    def _at(self, known: Range) -> Measured:
        sizes = sizes_in(known)
        recordings = [self.record(_sized(self.question, size)) for size in sizes]
        self.versions = recordings[0].versions
        self.assumed = [line for line in recordings[0].assumed if all(line in one.assumed for one in recordings)]
        _check_parameters(self.job, recordings[0])
        fitter = Fitter(sizes, self.job.recipe.tile_tokens if self.job.settings.loss == "fused" else 0)
        fresh, adding = _batches([cut(each) for each in recordings], fitter, int(self.job.arch.layers))
        modes = modes_of(Seats(self.job, POLICY).base)
        return Measured(modes=modes, **known._asdict(), fresh=fresh, adding=adding)


def apart(file: SavedArch, said: Understanding, judged: Judged, name: str) -> Apart:
    """How far the file is from the trace of the job itself, at the worst instant."""
    arch = saved_arch(content_of(file), name, name)
    phases = timeline(structs.replace(resolve(said, ALSO, programs=False), arch=arch)).phases
    ours = {_key(phase): phase.processes[0].allocated_bytes for phase in phases}
    found = [
        Apart(abs(ours[_key(phase)] - real) / real, phase.name, phase.instant)
        for phase in judged.phases
        if _key(phase) in ours and (real := phase.processes[0].allocated_bytes)
    ]
    return max(found)


def _key(phase: PhaseBytes) -> tuple[str, str, str]:
    return phase.when, phase.name, phase.instant


def _check(job: Resolved) -> None:
    settings = job.settings
    if settings.recompute not in ("none", "full"):
        raise refuse(f"recompute = {settings.recompute} is traced, but not saved yet", saved="none, full")
    if settings.quant_kind == "int8":
        raise refuse("quant.kind = int8 is traced, but not saved yet", why="its nodes hold tensors beyond their block")
    if job.arch.layers < _LAYERS:
        raise refuse(f"{job.arch.name} has {job.arch.layers} layers: one between others is measured", least="3")


def _recomputes(job: Resolved) -> list[str]:
    """The job's own way first."""
    return ["none", "full"] if job.settings.recompute == "none" else ["full", "none"]


def _sized(question: Question, size: Sizes) -> Question:
    return structs.replace(
        question,
        sequences=size.sequences,
        seq_len=size.seq_len,
        scored_len=size.scored_len,
        accumulation=_BATCHES,
        steps=1,
    )


def _check_parameters(job: Resolved, recording: Recording) -> None:
    """The table of tensors must be what the real class has, to a thousandth: buffers are no parameters."""
    seat = Seats(job, POLICY).base
    counted = {"weight": int(stored_weights(seat))}
    if seat.tuning == "lora":
        counted["adapter"] = int(held_trainable(seat)) * BYTES[seat.adapter_dtype]
    begins = next(first for mark, first, _ in recording.spans() if mark.phase == "forward")
    loaded = live(recording, begins - 1)
    for purpose, expected in counted.items():
        real = sum(storage.bytes for storage in loaded if storage.purpose == purpose)
        if abs(real - expected) * 1000 > expected:
            raise refuse(
                f"the {purpose}s of {job.arch.name} are not those that vramcast counts: it cannot be saved",
                traced=f"{real:,} bytes",
                counted=f"{expected:,} bytes",
            )


def _batches(recordings: Sequence[list[CutBatch]], fitter: Fitter, layers: int) -> list[Parts]:
    """The two micro-batches of a step."""
    for batches in recordings:
        if len(batches) != _BATCHES or any(len(batch.blocks) != layers for batch in batches):
            raise refuse(f"the traced step does not run {layers} blocks in each of {_BATCHES} micro-batches")
    return [_parts([batches[number] for batches in recordings], fitter) for number in range(_BATCHES)]


def _parts(batches: Sequence[CutBatch], fitter: Fitter) -> Parts:
    def block(index: int) -> Part:
        return fitter.block([batch.blocks[index] for batch in batches], f"block {index}")

    kinds = _kinds(batches[0].blocks)
    if any(_kinds(batch.blocks) != kinds for batch in batches):
        raise refuse("which blocks are equal depends on the sizes: no block stands for others")
    return Parts(
        front=fitter.end([batch.front for batch in batches], "what comes before the blocks"),
        first=block(0),
        layers=tuple(Layers(count, block(index)) for index, count in kinds),
        tail=fitter.end([batch.tail for batch in batches], "what follows the blocks"),
        embedding=fitter.end([batch.embedding for batch in batches], "the embedding's backward"),
    )


def _kinds(blocks: Sequence[Cut]) -> list[tuple[int, int]]:
    """(one of them, how many) of every kind of blocks behind the first one, the last one's kind first."""
    last = len(blocks) - 1
    found: dict[int, int] = {}
    for index in range(1, last):
        like = next((other for other in found if _equal(blocks[other], blocks[index])), index)
        found[like] = found.get(like, 0) + 1
    usual = next((other for other in found if _equal(*map(_forward, (blocks[other], blocks[last])))), last)
    found[usual] = found.get(usual, 0) + 1
    return sorted(found.items(), key=lambda kind: kind[0] != usual)


def _forward(block: Cut) -> Cut:
    """What a block makes in its forward; the last one is given other gradients than those before it."""
    ends = block.borders[1]
    return Cut((), tuple(one._replace(dies=min(one.dies, ends)) for one in block.tensors if one.born < ends))


def _equal(one: Cut, other: Cut) -> bool:
    """The same tensors of the same size."""
    return difference(one, other) is None and all(
        left.bytes == right.bytes for left, right in zip(one.tensors, other.tensors, strict=True)
    )
