"""The quick reference and the worked total, with every term and the number of cards that really fit."""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.estimate import peak_phase
from vramcast.rules_of_thumb.guide.ask import (
    GRPO,
    LORA,
    ROLLOUT,
    TRAINING,
    block,
    command,
    exact,
    gib,
    moment,
    prose,
    rules,
    table,
    worst,
)  # fmt: skip
from vramcast.rules_of_thumb.guide.settle import on_gpus, settled, smallest
from vramcast.types.result import Forecast, PhaseBytes
from vramcast.units import GIB

FULL = {
    **GRPO, "tuning": "full", "reference.kind": "copy", "group": "8", "prompt_len": "1024", "response_len": "3072",
    "engine.max_len": "4096",
}  # fmt: skip
"""The worked total of A: 7B, all parameters, a frozen copy, rules as reward, groups of 8, 4,096 tokens."""
_QUICK = (("7B", "8"), ("7B", "16"), ("14B", "4"), ("14B", "8"), ("32B", "2"), ("32B", "8"), ("72B", "8"))
_WORDS = {"fits": "fits", "tight": "tight", "does_not_fit": "does not fit", None: ""}


def sizing() -> list[str]:
    """Both sections."""
    return [*_quick(), *_total()]


def _lora(size: str, batch: str) -> dict[str, str]:
    """A row of the quick reference; a step needs at least one group of 8, so small batches accumulate."""
    return {
        **GRPO, **LORA, "model": f"Qwen2.5-{size}", "micro_batch": batch,
        "accumulation": str(max(8 // int(batch), 1)), "group": "8", "prompt_len": "1024", "response_len": "1024",
        "engine.max_len": "2048",
    }  # fmt: skip


def _quick() -> list[str]:
    rows: list[tuple[str, ...]] = []
    commands: list[str] = []
    peaks: list[tuple[str, PhaseBytes]] = []
    for size, batch in _QUICK:
        one = settled(on_gpus(_lora(size, batch), 1))
        job, answer = smallest(_lora(size, batch))
        rows.append((size, batch, _by_rule(size, batch), _state(exact(one)), job["gpus"], job["engine.tp"],
                     job["engine.fraction"], gib(worst(answer, ROLLOUT).bytes), gib(worst(answer, TRAINING).bytes),
                     _WORDS[answer.verdict]))  # fmt: skip
        if batch == "8":
            commands.append(command(job))
            peak = peak_phase(answer)
            peaks.append((f"{size} on {job['gpus']}, {moment(peak)}", peak))
    return [
        "## One H100",
        "",
        *prose(
            "B's quick reference: GRPO + LoRA on one H100 of 80 GB, sequences of 2,048 tokens. B says: 7B with a "
            "batch of 8 to 16 yes, 14B with 4 to 8 yes, 32B no (2 cards or more), 72B no (8 or more). The rules, and "
            "the forecast for Qwen2.5:"
        ),
        *table(
            ("model", "batch", "rules", "exact, one H100", "GPUs that fit", "`engine.tp`", "`engine.fraction`",
             "rollout", "training", ""),
            rows, right=range(1, 9),
        ),
        *prose(
            "Settings: 1,024 + 1,024 tokens, groups of 8, `accumulation` so that a step has at least 8 responses on "
            "a GPU. `engine.fraction` is the smallest that holds the whole rollout at once. Several GPUs use FSDP2. "
            "The table tries 1, 2, 4, 8 and 16 GPUs and takes the first that fits, with the smallest `engine.tp`; "
            "rollout and training are the fullest instants there."
        ),
        *prose(
            f"The engine's own copy of the weights decides. 32B in bf16 is {_copies()}: no batch is small enough for "
            "one card. The rules share one copy and leave room for 6 sequences."
        ),
        *prose("Every term of one GPU at the peak, for a batch of 8 on the fewest GPUs that fit:"),
        *_terms(peaks),
        *block(*commands),
    ]  # fmt: skip


def _copies() -> str:
    phase = worst(exact(settled(on_gpus(_lora("32B", "2"), 1))), ("generate",))
    sizes = {term.name: gib(term.bytes) for term in phase.terms}
    return f"{sizes['weights']} for the trainer and {sizes['engine.weights']} for the engine"


def _by_rule(size: str, batch: str) -> str:
    answer = rules(f"article/{size.lower()}", algorithm="grpo", tuning="lora", micro_batch=batch, seq_len="2048",
                   group=batch, gpu="h100-sxm-80gb")  # fmt: skip
    return f"{answer.peak_gb:,} GB, {'yes' if answer.fits else 'no'}"


def _state(answer: Forecast) -> str:
    return f"{gib(answer.peak.bytes)}, {_WORDS[answer.verdict]}"


def _total() -> list[str]:
    chosen, answer = smallest(FULL, responses=8)
    phases = [worst(answer, ROLLOUT), worst(answer, TRAINING)]
    return [
        "## The worked total",
        "",
        *prose(
            "A's example: 7B, all parameters learn, a frozen copy as reference, a rule as reward, groups of 8 "
            "responses, 4,096 tokens. A adds it up to 164.0 GB. The rules, term by term:"
        ),
        *_article_total(),
        *prose(
            f"The forecast for Qwen2.5-7B: **{chosen['gpus']} H100s** with FSDP2 are the fewest that fit, with "
            f"{gib(answer.peak.bytes)} of {gib(answer.peak.capacity_bytes or 0)} at the peak. The step keeps its 8 "
            "responses; each GPU takes its share."
        ),
        *table(("GPUs", "micro_batch", "`engine.fraction`", "rollout", "training", "peak", "", ""), _counts(),
               right=range(6)),
        *prose(
            f"Every term on {chosen['gpus']} GPUs, at the two fullest instants. The article adds parts that are never "
            "there together:"
        ),
        *_terms([(moment(phase), phase) for phase in phases]),
        *block(command(chosen)),
    ]  # fmt: skip


def _article_total() -> list[str]:
    answer = rules("article/7b", algorithm="grpo", micro_batch="8", group="8", seq_len="4096", reference__kind="copy",
                   reward__kind="rules", recompute="full")  # fmt: skip
    (phase,) = answer.phases
    rows = [(term.name if term.role == "policy" else f"{term.name} ({term.role})", f"{term.gb:,}", str(term.rule))
            for term in phase.terms]  # fmt: skip
    return [
        *table(("part", "GB", "rule"), [*rows, ("sum", f"{phase.gb:,}", "")], right=(1, 2)),
        "That is within A's 164.0; the text does not say what the rest is.",
        "",
    ]


def _counts() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for gpus in (1, 2, 4, 8):
        job = settled(on_gpus(FULL, gpus, 1, 8))
        answer = exact(job)
        found.append((str(gpus), job["micro_batch"], job["engine.fraction"], gib(worst(answer, ROLLOUT).bytes),
                      gib(worst(answer, TRAINING).bytes), gib(answer.peak.bytes), moment(peak_phase(answer)),
                      _WORDS[answer.verdict]))  # fmt: skip
    return found


def _terms(columns: Sequence[tuple[str, PhaseBytes]]) -> list[str]:
    """Terms of some instants side by side, the largest first."""
    sizes = [{(term.name, term.role): term.bytes for term in phase.terms} for _, phase in columns]
    names = sorted({name for found in sizes for name in found}, key=lambda name: -max(s.get(name, 0) for s in sizes))
    rows = [(f"`{name}` ({role})", *(f"{found.get((name, role), 0) / GIB:,.2f}" for found in sizes))
            for name, role in names]  # fmt: skip
    total = ("total", *(f"{phase.bytes / GIB:,.2f}" for _, phase in columns))
    head = ("term, GiB", *(title for title, _ in columns))
    return table(head, [*rows, total], right=range(1, len(head)))
