"""The four levers of A and the seven tips of B: what each changes, by asking the forecast again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
    refusal,
    table,
    worst,
)  # fmt: skip
from vramcast.rules_of_thumb.guide.settle import on_gpus, settled
from vramcast.rules_of_thumb.guide.sizing import FULL


class Tip(NamedTuple):
    """An edit of a job, and what it means in words."""

    place: str
    says: str
    edits: dict[str, str]
    why: str


def tips() -> list[str]:
    """Both lists."""
    return [*_levers(), *_seven()]


_A = on_gpus(FULL, 2, 1, 8)
_NO_ENGINE = {"engine.kind": "hf", "engine.sleep": "none"}
_B = {
    **GRPO, **_NO_ENGINE, "gpus": "1", "tuning": "full", "recompute": "none", "micro_batch": "8", "accumulation": "1",
    "group": "8", "prompt_len": "1024", "response_len": "1024",
}  # fmt: skip


def _levers() -> list[str]:
    found = (
        Tip("", "the worked total on 2 H100s", {}, ""),
        Tip("1", "no reference (KL coefficient 0)", {"reference.kind": "none"}, "its share of the copy goes"),
        Tip("1", "reference on the host", {"reference.offload.weights": "cpu"},
            "it comes layer by layer while it scores"),
        Tip("2", "LoRA, the base as reference", {**LORA, "reference.kind": "adapter_off"},
            "gradients and states all but vanish, and no copy is needed"),
        Tip("2", "cache in 8 bit", {"engine.kv_dtype": "fp8"}, "smaller cache, more sequences at once"),
        Tip("2", "engine weights in 8 bit", {"engine.quant": "fp8"}, "half the engine's copy"),
        Tip("3", "without sharding (DDP)", {"shard": "none"}, "for comparison: every GPU holds everything"),
        Tip("3", "ZeRO-2", {"shard": "zero2"}, ""),
        Tip("3", "ZeRO-3", {"shard": "zero3"}, ""),
        Tip("3", "optimizer on the host", {"offload.optimizer": "cpu"}, "states leave while nothing trains"),
        Tip("4", "groups of 4", {"group": "4", "micro_batch": "2"},
            "half the cache in flight, and half the micro-batch"),
    )  # fmt: skip
    rows = [_row(tip, {**_A, **tip.edits}, tip.edits) for tip in found]
    return [
        "## The four levers of A",
        "",
        *prose(
            "In A's order: the reference, LoRA and low precision, ZeRO or offload, the group size. Each row is the "
            "worked total on two H100s (FSDP2, 4 sequences of 4,096 tokens on each) with one edit, and its own "
            "smallest `engine.fraction`."
        ),
        *table(_HEAD, rows, right=(2, 3, 4)),
        "`vramcast levers` does the same for your job, and ranks what helps.",
        "",
        *block(command(settled(_A))),
    ]


_HEAD = ("", "edit", "rollout", "training", "peak", "peak stands in", "what it does")


def _row(tip: Tip, job: dict[str, str], shown: dict[str, str]) -> tuple[str, ...]:
    label = f"{tip.says}: " if shown and tip.says else tip.says
    edits = ", ".join(f"`{path}={value}`" for path, value in shown.items())
    trial = {**job, "engine.fraction": "0.9"} if job["engine.kind"] == "vllm" else job
    refused = refusal(trial)
    if refused:
        return (tip.place, label + edits, "–", "–", "–", "–", f"no answer: {refused}")
    answer = exact(settled(job) if job["engine.kind"] == "vllm" else job)
    verdict = {"fits": "", "tight": ", tight", "does_not_fit": ", does not fit", None: ""}[answer.verdict]
    return (
        tip.place,
        label + edits,
        gib(worst(answer, ROLLOUT).bytes),
        gib(worst(answer, TRAINING).bytes),
        gib(answer.peak.bytes) + verdict,
        moment(peak_phase(answer)),
        tip.why,
    )


def _seven() -> list[str]:
    stairs = (
        Tip("", "all parameters learn, no checkpointing, generation with the model's own code", {}, ""),
        Tip("1", "LoRA", LORA, "gradients and states all but vanish; activations stay"),
        Tip("2", "checkpointing", {"recompute": "full"}, "activations of one layer instead of all"),
        Tip("3", "half the micro-batch", {"micro_batch": "4", "accumulation": "2"}, "the same step in two pieces"),
        Tip("4", "vLLM", {"engine.kind": "vllm", "engine.sleep": "2", "engine.max_len": "2048"},
            "faster, not smaller: a second copy of the weights while it generates"),
    )  # fmt: skip
    job = dict(_B)
    rows: list[tuple[str, ...]] = []
    for tip in stairs:
        job |= tip.edits
        rows.append(_row(tip, job, tip.edits))
    rows += [_row(tip, {**job, **tip.edits}, tip.edits) for tip in _last(job)]
    return [
        "## The seven tips of B",
        "",
        *prose(
            "In B's order, as stairs: each of the first four rows keeps the edits above it. Tips 5 to 7 are each "
            "tried on top of the fourth. Qwen2.5-7B, GRPO on one H100, a group of 8 responses, 1,024 + 1,024 tokens, "
            "no reference."
        ),
        *table(_HEAD, rows, right=(2, 3, 4)),
        *block(command(_B), command(settled(job))),
    ]


def _last(job: dict[str, str]) -> Sequence[Tip]:
    return (
        Tip("5", "tensor parallelism of the engine on 2 GPUs",
            {"gpus": "2", "shard": "fsdp2", "engine.tp": "2"},
            "each GPU holds half of the engine and, with FSDP2, of the base"),
        Tip("5", "tensor parallelism of the trainer", {"gpus": "2", "tp": "2"}, ""),
        Tip("6", "4-bit base (QLoRA)", {"tuning": "qlora", "quant.kind": "nf4"}, "a quarter of the trainer's weights"),
        Tip("6", "fp32 weights, for comparison", {"weights_dtype": "fp32"}, "what TRL loads when no dtype is set"),
        Tip("7", "trainer's weights on the host", {"offload.weights": "cpu"},
            "the base leaves while the engine generates"),
    )  # fmt: skip
