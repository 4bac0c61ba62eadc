"""The head of a report: the verdict, what was priced, and why: the phase, instant and term that bind."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.estimate import peak_phase
from vramcast.memory.term import TERMS
from vramcast.report.words import VERDICTS, moment, owned, value
from vramcast.types.paths import Value
from vramcast.types.result import EngineBytes, Forecast, PhaseBytes, TermBytes, gets_through
from vramcast.units import gib

_CAUSES = {
    "logits": "how many tokens of a batch are scored is not known",
    "cuda.context": "drivers differ, and the order in which kernels are loaded",
    "allocator.cached": "blocks that an earlier phase left may fit nothing here",
    "allocator.fragmented": "cached blocks that fit no later tensor",
    "nccl": "buffers of communication differ by topology and version",
    "engine.kv": "it gets what the engine's other parts leave of its share",
    "engine.activation": "the engine's dry run differs by version",
    "engine.graphs": "CUDA graphs differ by version and batch sizes",
    "engine.runtime": "what kernels and communication take differs by version",
}
"""Term -> why its low and high ends differ. What is not here is explained by the first sentence of its manual."""
_EAGER_ENTROPY = "entropy is taken as compiled; run eagerly it adds three fp32 tensors of that size"
_LONG = 60
_TUNED = {"full": "full fine-tuning", "frozen": "nothing trains"}


def verdict_line(answer: Forecast) -> str:
    """The first line: the verdict, the need and the room."""
    peak, group = answer.peak, answer.groups[0]
    word = VERDICTS[answer.verdict]
    if peak.capacity_bytes is None or peak.margin_bytes is None:
        return f"{word} {gib(peak.bytes)} on {'one GPU' if group.gpus == 1 else f'each of {group.gpus:,} GPUs'}"
    return f"{word}: {gib(peak.bytes)} of {gib(peak.capacity_bytes)} on {group.gpus:,} × {group.gpu}, {_room(answer)}"


def _room(answer: Forecast) -> str:
    peak = answer.peak
    capacity, margin = peak.capacity_bytes or 0, peak.margin_bytes or 0
    if answer.verdict == "does_not_fit" and margin >= 0:
        return "but the engine will not start"
    if answer.verdict == "tight" and margin >= 0:
        return f"at worst {gib(peak.high_bytes)}" if peak.high_bytes > capacity else "but the engine may not start"
    if answer.verdict == "tight":
        return f"at best {gib(peak.low_bytes)}"
    return f"{gib(abs(margin))} {'to spare' if margin >= 0 else 'too much'}"


def head(answer: Forecast, *, full: bool = False) -> Iterator[tuple[str, str]]:
    """(label, text) of what stands under the verdict."""
    peak = answer.peak
    yield "job", job_line(answer)
    yield "priced", priced_line(answer, full=full)
    span = f"; range {gib(peak.low_bytes)} to {gib(peak.high_bytes)}" if peak.low_bytes < peak.high_bytes else ""
    yield "peak", f"{moment(peak, peak.phase)}{span}"
    yield "why", "; ".join(_reasons(answer))
    if answer.fits_up_to_tokens:
        yield "length", f"fits while a micro-batch holds at most {answer.fits_up_to_tokens:,} tokens: none is padded"
    for engine in (engine for group in answer.groups for engine in group.engines):
        yield "engine", "; ".join(_engine(engine, full=full))
    for node in answer.nodes:
        room = f" of {gib(node.host_capacity_bytes)}" if node.host_capacity_bytes is not None else ""
        yield "host", f"{gib(node.host_bytes)}{room} of one machine's memory"


def priced_line(answer: Forecast, *, full: bool = False) -> str:
    """The framework's version, where it comes from, and that another may be meant."""
    priced = answer.framework
    if answer.job.get("algorithm") == "inference" and answer.job.get("engine.kind") == "vllm":
        named = answer.job.get("engine.version")
        return f"vllm {named}" if named else "vllm by its newest rules, assumed (--set engine.version=VERSION)"
    name, _, version = priced.value.partition("==")
    if not priced.assumed:
        short = full or len(priced.origin) <= _LONG
        return f"{name} {version} ({priced.origin if short else f'{priced.origin[:_LONG]}…'})"
    why = f"assumed ({priced.origin})" if full else "assumed"
    return f"{name} {version}, {why}; others may differ (--set framework={name}==VERSION)"


def job_line(answer: Forecast) -> str:
    """Model, algorithm, tuning and layout; then micro-batch, accumulation and length."""
    known: dict[str, Value] = {item.path: item.value for item in answer.assumptions} | answer.job
    return "; ".join(", ".join(filter(None, part)) for part in (_what(answer, known), _work(known)))


def _what(answer: Forecast, known: dict[str, Value]) -> Iterator[str]:
    algorithm = str(known.get("algorithm", "sft"))
    model = value(known.get("model"))
    yield model if len(model) <= _LONG else f"…{model[-_LONG:]}"
    yield algorithm
    if algorithm != "inference":
        tuning = str(known.get("tuning", "full"))
        yield _TUNED.get(tuning, f"{tuning} of rank {value(known.get('lora.rank'))}")
    packed = value(known.get("quant.kind", "none"))
    yield f"{packed} weights" if packed != "none" else ""
    if answer.groups[0].gpus > 1:
        shared = value(known.get("shard", "none"))
        yield shared if shared != "none" else "a copy on each GPU"


def _work(known: dict[str, Value]) -> Iterator[str]:
    if known.get("algorithm") == "inference" and known.get("engine.kind") == "vllm":
        yield f"sequences of up to {_count(known.get('engine.max_len'))} tokens"
        return
    budget, micro = known.get("token_budget"), known.get("micro_batch")
    accumulation = known.get("accumulation", 1)
    if budget is not None:
        yield f"micro-batches of at most {_count(budget)} tokens"
    elif known.get("algorithm") == "inference":
        yield f"batch {_count(micro)}"
    else:
        yield f"micro-batch {_count(micro)}" + (f" × {_count(accumulation)} accumulated" if accumulation != 1 else "")
    prompt, response = known.get("prompt_len"), known.get("response_len")
    if known.get("algorithm") == "grpo" or (known.get("algorithm") == "inference" and prompt and response):
        yield f"prompt {_count(prompt)} + response {_count(response)} tokens"
        yield f"{_count(known.get('group', 1))} a prompt" if known.get("algorithm") == "grpo" else ""
    else:
        yield f"{'packs' if known.get('packing') is True else 'sequences'} of {_count(known.get('seq_len'))} tokens"


def _count(raw: Value) -> str:
    return f"{raw:,}" if isinstance(raw, int) and not isinstance(raw, bool) else value(raw)


def _reasons(answer: Forecast) -> Iterator[str]:
    """The term that makes the peak; for a range on both sides of the card's size, the term that makes the range."""
    phase = peak_phase(answer)
    largest = max(phase.terms, key=lambda term: term.bytes)
    percent = round(largest.bytes * 100 / answer.peak.bytes)
    yield f"the largest term is {owned(largest)}, {gib(largest.bytes)} ({percent} %)"
    if answer.verdict != "tight":
        return
    if (answer.peak.margin_bytes or 0) < 0:
        term = max(phase.terms, key=lambda term: term.bytes - term.low_bytes)
        yield f"{owned(term)} may be {gib(term.low_bytes)} only: {cause(term, phase)}"
    elif answer.peak.high_bytes > (answer.peak.capacity_bytes or 0):
        yield from _high_end(answer)


def _high_end(answer: Forecast) -> Iterator[str]:
    """Which term makes the high end, where, and why. What is only cached counts last: PyTorch gives it back before an
    allocation fails."""
    needed = answer.peak.needs_high_bytes > (answer.peak.capacity_bytes or 0)

    def more(term: TermBytes) -> int:
        return 0 if needed and term.counter == "cached" else term.high_bytes - term.bytes

    phase = max(answer.groups[0].phases, key=lambda phase: phase.bytes + sum(map(more, phase.terms)))
    term = max(phase.terms, key=more)
    yield (
        f"at worst {gib(phase.high_bytes)} in {phase.name} · {phase.instant}, as {owned(term)} may be "
        f"{gib(term.high_bytes)} there: {cause(term, phase)}"
    )
    if gets_through(answer.verdict, answer.peak):
        yield "a yes: near the card's size" if needed else "a yes: PyTorch gives them back before it fails"


def cause(term: TermBytes, phase: PhaseBytes) -> str:
    """Why the low and the high end of a term differ, in words."""
    if term.name == "logits" and phase.name == "score.old":
        return _EAGER_ENTROPY
    if term.name in _CAUSES:
        return _CAUSES[term.name]
    entry = TERMS.get(term.name)
    first = " ".join(entry.manual.split("\n\n")[0].split()) if entry is not None else ""
    return first.partition(". ")[0].rstrip(".") or "it is known as a range only"


def _engine(engine: EngineBytes, *, full: bool) -> Iterator[str]:
    each = f" of {engine.kv_bytes_per_token:,} bytes" if full else ""
    yield (
        f"{gib(engine.pool_bytes)} a GPU, {gib(engine.kv_bytes)} of it cache: {engine.kv_tokens:,} tokens{each}, "
        f"{engine.max_concurrency:,} of the longest at once"
    )
    if full:
        yield f"{engine.waves:,} waves for one rollout, if every response is as long as allowed"
    if engine.fraction_low is not None and engine.fraction_high is not None:
        yield share(engine.fraction_low, engine.fraction_high)


def share(low: float, high: float) -> str:
    """The window of an engine's share in words."""
    if low <= high:
        return f"engine.fraction works from {low} to {high}"
    return f"no engine.fraction is sure to work: {low} is needed, {high} is free beside the rest"
