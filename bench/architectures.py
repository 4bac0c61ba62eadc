"""The forecast of every model type beside a trace of its real class, instant by instant. Needs the extra `trace`.

    python bench/architectures.py [TYPE ...] [--mode full] [--by-term] [--all] [--new] [PATH=VALUE ...]

A small model of each type (tests/models/tiny.py), in four modes: full or LoRA, blocks kept or recomputed. A line says
how far the worst instant is off. `--by-term` shows, for every instant that is off by more than 1 % (`--all`: for every
one), the terms of both sides, and the tensors of the block at work: of the trace (operator, module, shape) beside those
of the tape. Recordings are kept: a class runs once; `--new` runs it again. Where a class would use kernels that are
not installed (mamba-ssm, causal-conv1d, flash-linear-attention), what runs is its own path in PyTorch. It exits with 1
if a type that has a formula is off in a mode.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from msgspec import structs

warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.models.tiny import MODES, job, smallest, tiny  # noqa: E402

from vramcast.errors import Refused  # noqa: E402
from vramcast.estimate import forecast  # noqa: E402
from vramcast.memory import allocator, passes  # noqa: E402
from vramcast.memory.alloc_conf import AllocatorSettings  # noqa: E402
from vramcast.memory.head import Model  # noqa: E402
from vramcast.memory.seat import Seat  # noqa: E402
from vramcast.memory.tape import Tape  # noqa: E402
from vramcast.models.layout import Blocks  # noqa: E402
from vramcast.trace import record, resolved  # noqa: E402
from vramcast.trace.cache import Cache  # noqa: E402
from vramcast.trace.judged import Judged, judge  # noqa: E402
from vramcast.trace.process import Child, Tell  # noqa: E402
from vramcast.trace.question import question_of  # noqa: E402
from vramcast.trace.recording import NO_BLOCK, Mark, Recording, Storage  # noqa: E402
from vramcast.types.job import Fact, Origin, Understanding, check_value  # noqa: E402
from vramcast.types.result import PhaseBytes  # noqa: E402

LIMIT = 0.01
NOT_COMPARED = ("allocator.rounding", "cublas.workspace", "cuda.context", "allocator.cached")
"""what the trace alone can know, as the rounding of tensors that come and go; workspaces are left out of it"""
FIXED = ("weight", "adapter", "buffer", "state", "workspace", "gradient", "hidden")
"""purposes of what is no operator's work"""
WORK = ("activations.block", "activations.saved", "outputs", "logits", "inputs")
"""terms whose tensors are shown"""
DIFFERS = 4096
"""bytes above which two terms are not the same: a few scalars are no tensors to the formulas"""
Key = tuple[str, str, str]


class Here(Child):
    """Runs the step in this process: imports are paid once."""

    def __init__(self) -> None:
        pass

    def record(self, question: Any, tell: Tell = lambda progress: None) -> Recording:
        from vramcast.trace.child.step import run

        return run(question)


class Run(NamedTuple):
    """A block's forward on a tape, which its backward follows."""

    seat: Seat
    kind: Blocks
    tape: Tape
    begin: int
    end: int


class Row(NamedTuple):
    """A tensor of one side."""

    bytes: int
    text: str


class Compared(NamedTuple):
    """A job by both methods; `wrong` says why there is no formula, or no class."""

    traced: Judged | None
    formula: dict[Key, PhaseBytes]
    runs: list[Run]
    wrong: str = ""

    def instants(self) -> Iterator[tuple[PhaseBytes, PhaseBytes]]:
        """(by the trace, by the formula) of every instant that both have."""
        for phase in self.traced.phases if self.traced else ():
            if key_of(phase) in self.formula:
                yield phase, self.formula[key_of(phase)]

    @property
    def off(self) -> float:
        """How far the worst instant is off, as a share; with its sign."""
        return max((off(*pair) for pair in self.instants()), key=abs, default=float("nan"))


def said(values: dict[str, Any]) -> Understanding:
    """The job as a user says it with `--set`."""
    origin = Origin("--set")
    return Understanding([Fact(path, check_value(path, value, origin), origin) for path, value in values.items()])


def compare(
    model_type: str, mode: str, cache: Cache | None = None, *, watch: bool = False, more: dict[str, Any] | None = None
) -> Compared:
    """The small model of a type in one mode, both ways. `watch`: keep the tapes."""
    config = tiny(model_type)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        asked = said({"model": str(path), **job(model_type, mode), **(more or {})})
        formula: dict[Key, PhaseBytes] = {}
        wrong, runs = "", list[Run]()
        try:
            with _watched(runs if watch else None):
                formula = {key_of(phase): phase for phase in forecast(asked, cards=False).groups[0].phases}
        except Refused as refused:
            wrong = f"no formula: {refused.mistakes[0].fact}"
        except Exception as error:
            wrong = f"the formula fails: {type(error).__name__}: {error}"
        try:
            return Compared(_traced(asked, config, cache), formula, runs, wrong)
        except Exception as error:
            why = error.mistakes[0].fact if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
            no_class = f"no class: {' '.join(why.split())[:160]}"
            return Compared(None, formula, runs, "; ".join(filter(None, [wrong, no_class])))


def _traced(asked: Understanding, config: dict[str, Any], cache: Cache | None) -> Judged:
    """The class's step on a card whose libraries take no workspace: it would hide which moment is the worst."""
    known = resolved(asked)
    question = structs.replace(question_of(known, config), cublas_bytes=0, cublaslt_bytes=0)
    return judge(record(question, Here(), cache=cache), AllocatorSettings(), known.gpu, None)


@contextmanager
def _watched(runs: list[Run] | None) -> Generator[None]:
    """Note every block that runs on a tape; on the sizes of the job, and not once for all sizes."""
    plain, planned = Model.run, passes.planned

    def run(self: Model, block: Blocks, hidden: Any) -> Any:
        begin = len(self.tape.steps)
        out = plain(self, block, hidden)
        assert runs is not None
        runs.append(Run(self.seat, block, self.tape, begin, len(self.tape.steps)))
        return out

    if runs is not None:
        Model.run, passes.planned = run, lambda seat, _, make: make(seat)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Model.run, passes.planned = plain, planned  # type: ignore[method-assign]


def key_of(phase: PhaseBytes) -> Key:
    return phase.when, phase.name, phase.instant


def tensors(phase: PhaseBytes) -> int:
    """Bytes of tensors."""
    return phase.processes[0].allocated_bytes - sum(term.bytes for term in phase.terms if term.name in NOT_COMPARED[:2])


def off(traced: PhaseBytes, formula: PhaseBytes) -> float:
    """How far the formula is from the trace, as a share."""
    return tensors(formula) / tensors(traced) - 1


# --- term by term, tensor by tensor -----------------------------------------------------------------------------------


def show(found: Compared, everything: bool) -> None:
    """Print the instants that are off, each with what both sides hold. Where a later run of the loop is off, the first
    run's instant is left out."""
    assert found.traced is not None
    recording, spans = found.traced.recording, found.traced.replayed.spans
    shown: set[tuple[str, str]] = set()
    seen: dict[str, str] = {}
    for traced, formula in sorted(found.instants(), key=lambda pair: pair[0].when != "steady"):
        place = traced.name, traced.instant
        if everything or (abs(off(traced, formula)) > LIMIT and place not in shown):
            shown.add(place)
            here = [span for span in spans if _key(span.mark) == key_of(traced)]
            worst = max(here, key=lambda span: span.allocated)
            apart = _show_terms(traced, formula)
            if worst.mark.phase in ("forward", "loss", "backward"):
                _show_tensors(living(recording, worst.event), worst.mark, recording, found.runs, apart, seen)
    if not found.formula:
        for span in max_spans(spans):
            print(f"  {' '.join(_key(span.mark))}: {_mib(span.requested)} MiB")
            _show_tensors(living(recording, span.event), span.mark, recording, [], set(WORK), seen)


def max_spans(spans: list[Any]) -> list[Any]:
    """The worst span of every instant of forward and backward in a later run of the loop."""
    found: dict[Key, Any] = {}
    for span in spans:
        if span.mark.when == "steady" and span.mark.phase in ("forward", "backward"):
            known = found.get(_key(span.mark))
            found[_key(span.mark)] = span if known is None or span.allocated > known.allocated else known
    return list(found.values())


def _key(mark: Mark) -> Key:
    return mark.when, mark.phase, mark.instant


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.3f}"


def _show_terms(traced: PhaseBytes, formula: PhaseBytes) -> set[str]:
    """The terms of both sides; those that differ."""
    print(f"  {off(traced, formula):+7.2%}  {' '.join(key_of(traced))}: trace {_mib(tensors(traced))} MiB,"
          f" formula {_mib(tensors(formula))} MiB")  # fmt: skip
    theirs, ours = ({term.name: term.bytes for term in phase.terms} for phase in (traced, formula))
    apart: set[str] = set()
    for name in dict.fromkeys([*theirs, *ours]):
        if name not in NOT_COMPARED:
            left, right = theirs.get(name, 0), ours.get(name, 0)
            differs = abs(right - left) > DIFFERS
            print(f"      {name:24} {_mib(left):>10} {_mib(right):>10} {_mib(right - left) if differs else '':>10}")
            apart.update([name] if differs else [])
    return apart


def living(recording: Recording, event: int) -> list[Storage]:
    """What lives after an event."""
    alive: dict[int, Storage] = {}
    for code in recording.events[: event + 1]:
        if code >= 0 and code & 1:
            alive.pop(code >> 1, None)
        elif code >= 0:
            alive[code >> 1] = recording.storages[code >> 1]
    return list(alive.values())


def _show_tensors(
    alive: list[Storage],
    mark: Mark,
    recording: Recording,
    runs: list[Run],
    apart: set[str],
    seen: dict[str, str],
) -> None:
    """The block at work, and ones that have worked: their tensors by the trace, beside the tape's; equal ones once."""
    working = [one for one in alive if one.purpose not in FIXED]
    blocks = sorted({one.block for one in working if one.block != NO_BLOCK} - {mark.block})
    shown = [] if mark.block == NO_BLOCK or "activations.block" not in apart else [mark.block]
    shown += _by_kind(blocks, runs) if "activations.saved" in apart else []
    for block in shown:
        theirs = [_row(one, recording) for one in working if one.block == block]
        ours = _tape(runs, block, mark.phase if block == mark.block else "saved")
        name = f"layer {block}, {'at work' if block == mark.block else 'saved'}"
        known = seen.setdefault(str((theirs, ours)), f"{name} at {' '.join(_key(mark))}")
        print(f"      {name}: trace {_sum(theirs)} MiB, tape {_sum(ours)} MiB")
        if known.startswith(f"{name} at {' '.join(_key(mark))}"):
            _beside(theirs, ours)
        else:
            print(f"        as {known}")
    outside = [_row(one, recording) for one in working if one.block == NO_BLOCK]
    if apart & set(WORK) - {"activations.saved"}:
        print(f"      outside of layers: trace {_sum(outside)} MiB")
        _beside([row for row in outside if row.bytes > DIFFERS], [])


def _by_kind(blocks: list[int], runs: list[Run]) -> list[int]:
    """The last layer of each kind, and the first layer; all where no formula says which are alike."""
    kinds = {layer: index for index, run in enumerate(reversed(runs)) for layer in run.kind.layers}
    last = {kinds.get(block, -1 - block): block for block in blocks}
    return sorted({*last.values(), *({0} & set(blocks))})


def _row(storage: Storage, recording: Recording) -> Row:
    operator, module, shape = (recording.names[index] for index in (storage.op, storage.module, storage.shape))
    parts = module.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdecimal()), -1)
    return Row(storage.bytes, f"{'.'.join(parts[number + 1 :]):26} {operator.removeprefix('aten.'):28} {shape}")


def _tape(runs: list[Run], block: int, moment: str) -> list[Row]:
    """What the tape of a layer holds at its worst moment of forward or backward, or between them (`saved`)."""
    of_kind = [run for run in runs if block in run.kind.layers and run.seat.records and run.seat.when == "steady"]
    of_kind = of_kind or [run for run in runs if block in run.kind.layers and run.seat.records]
    quiet = [run for run in of_kind if run.tape.checkpointed]
    of_kind = quiet if quiet and moment == "forward" else [run for run in of_kind if not run.tape.checkpointed]
    if not of_kind:
        return []
    if quiet and moment == "saved":
        return [Row(int(of_kind[0].tape.steps[of_kind[0].begin - 1][1].size), "block input")]
    run = of_kind[-1] if block == 0 else of_kind[0]
    after = (step for step, (sign, one) in enumerate(run.tape.steps)
             if sign > 0 and one.name.endswith("output gradient") and step >= run.end)  # fmt: skip
    between = run.begin if quiet else next(after, run.end)  # a checkpoint's backward begins with the block's forward
    if moment == "saved":
        at = between - 1
    else:
        ends = run.end if quiet else between
        spans = range(run.begin, ends) if moment == "forward" else range(between, len(run.tape.steps))
        at = max(spans, key=lambda step: _alive(run.tape, step), default=run.begin)
    return [Row(int(life.size), life.name) for life in run.tape.lifetimes().living(at + 1)
            if life.kind != "gradient" and not life.name.startswith("rotary_emb")]  # fmt: skip


def _alive(tape: Tape, at: int) -> int:
    return sum(sign * int(one.size) for sign, one in tape.steps[: at + 1])


def _sum(rows: list[Row]) -> str:
    return _mib(sum(row.bytes for row in rows))


def _beside(theirs: list[Row], ours: list[Row]) -> None:
    """Rows of equal size side by side, in the order of birth; `<` and `>` mark what one side alone has."""
    sizes = [[row.bytes for row in side] for side in (theirs, ours)]
    for _, first, end, start, stop in SequenceMatcher(None, *sizes, autojunk=False).get_opcodes():
        same = sizes[0][first:end] == sizes[1][start:stop]
        for index, row in enumerate(theirs[first:end]):
            print(f"        {' ' if same else '<'} {_mib(row.bytes):>9}  {row.text:90} "
                  f"{ours[start + index].text if same else ''}".rstrip())  # fmt: skip
        for row in [] if same else ours[start:stop]:
            print(f"        > {_mib(row.bytes):>9}  {'':90} {row.text}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mode", default="", help=f"only modes whose name holds this: {', '.join(MODES)}")
    parser.add_argument("--exactly", action="store_true", help="only the mode of that name")
    parser.add_argument("--by-term", action="store_true", help="terms and tensors of instants that are off")
    parser.add_argument("--all", action="store_true", help="with --by-term: of every instant")
    parser.add_argument("--new", action="store_true", help="run every class again")
    parser.add_argument("what", nargs="*", metavar="TYPE or PATH=VALUE")
    asked = parser.parse_args()
    if asked.by_term:  # the tape itself, with numbers in it
        passes.planned = allocator.planned = lambda seat, what, make: make(seat)  # type: ignore[assignment]
    more = dict(text.split("=", 1) for text in asked.what if "=" in text)
    names = [name for name in asked.what if "=" not in name] or list(smallest())
    unknown = [name for name in names if name not in smallest()]
    if unknown:
        parser.error(f"unknown model type {', '.join(unknown)}; known: {', '.join(sorted(smallest()))}")
    modes = [mode for mode in MODES if (asked.mode == mode if asked.exactly else asked.mode in mode)]
    cache = None if asked.new else Cache(kept=2000)
    found_right: dict[str, list[str]] = {mode: [] for mode in modes}
    failed = 0
    for name in names:
        for mode in modes:
            begun = perf_counter()
            found = compare(name, mode, cache, watch=asked.by_term, more=more)
            told = found.wrong or f"{found.off:+7.2%}  {'' if abs(found.off) <= LIMIT else 'OFF'}"
            right = not found.wrong and abs(found.off) <= LIMIT
            failed += not found.wrong and not right
            found_right[mode] += [name] if right else []
            print(f"{name:18} {mode:16} {told}  ({perf_counter() - begun:.1f} s)", flush=True)
            if asked.by_term and found.traced is not None:
                show(found, asked.all)
    for mode, right in found_right.items():
        print(f"within {LIMIT:.0%}, {mode}: {' '.join(right)}")
    print(f"{failed} off" if failed else "none off")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
