"""Where the articles are wrong: each point computed, none of it only claimed."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.rules_of_thumb.guide.ask import (
    GENERATE,
    GRPO,
    LORA,
    SFT,
    at_step,
    block,
    command,
    exact,
    gib,
    most,
    prose,
    rules,
    table,
    worst,
)  # fmt: skip
from vramcast.rules_of_thumb.guide.settle import on_gpus, settled
from vramcast.rules_of_thumb.guide.sizing import FULL
from vramcast.rules_of_thumb.guide.worked import activations, recipe
from vramcast.types.result import Forecast

_RULES = {"model": "Qwen2.5-7B", "recompute": "full", "micro_batch": "8", "seq_len": "2048"}
_PLAIN = {**SFT, "loss": "full"}


def wrong() -> list[str]:
    """The section."""
    lines = ["## Where the articles are wrong", ""]
    for title, text, commands in _points():
        lines += [f"### {title}", "", *text]
        lines += block(*commands) if commands else []
    return lines


def _points() -> Iterator[tuple[str, list[str], list[str]]]:
    yield _heads()
    yield _logits()
    yield _adapters()
    yield _two_cards()
    yield _residue()
    yield _recipes()
    yield _speed()


def _heads() -> tuple[str, list[str], list[str]]:
    cache = most(exact(GENERATE), "kv_cache")
    article = rules("article/7b", algorithm="inference", micro_batch="16", seq_len="4096").phases[0].terms[1].gb
    return (
        "The cache rule is for multi-head models only",
        prose(
            "Rule 4 takes one key and one value as wide as the model, in every layer. Most models of today share "
            "keys and values between heads. Qwen2.5-7B has 28 layers and 4 key heads of 128: 16 × 4,096 tokens take "
            f"{gib(cache)}, not {article:,}. The right rule is 2 · layers · key heads · head width · bytes, for every "
            "token."
        ),
        [command(GENERATE)],
    )


def _logits() -> tuple[str, list[str], list[str]]:
    fused, plain = exact(SFT), exact(_PLAIN)
    kept = _recomputed(fused)
    return (
        "One layer's recomputation and the logits are missing",
        [
            *prose(
                "Rule 9 counts what checkpointing keeps, twice over (2 · L · h, where one hidden state a layer is "
                "kept). It does not count that one layer is run again in backward, all its tensors at once. Neither "
                "article has the logits: tokens × vocabulary, the largest cause of out-of-memory reports. "
                "Qwen2.5-7B, full tuning, 8 × 2,048 tokens:"
            ),
            *table(
                ("", "rule 9", "exact"),
                (
                    ("kept through the forward", gib(_rule_9()), gib(kept[0])),
                    ("one layer run again", "–", gib(kept[1])),
                    ("logits, plain loss", "–", gib(most(plain, "logits"))),
                    ("logits, fused head (TRL 1.15 and newer)", "–", gib(most(fused, "logits"))),
                    ("peak, plain loss", "–", gib(plain.peak.bytes)),
                    ("peak, fused head", "–", gib(fused.peak.bytes)),
                ),
                right=(1, 2),
            ),
        ],
        [command(SFT), command(_PLAIN)],
    )


def _rule_9() -> int:
    terms = rules(**_RULES).phases[0].terms
    return next(term.bytes for term in terms if term.name == "activations")


def _recomputed(answer: Forecast) -> tuple[int, int]:
    return most(answer, "activations.saved"), most(answer, "activations.block")


def _adapters() -> tuple[str, list[str], list[str]]:
    jobs = [{**_PLAIN, "recompute": kind, "lora.dropout": "0", **LORA, "tuning": tuning}
            for kind in ("none", "full") for tuning in ("full", "lora")]  # fmt: skip
    rows = [
        (
            f"{'no checkpointing' if job['recompute'] == 'none' else 'checkpointing'}, {job['tuning']}",
            gib(activations(job)),
            gib(most(exact(job), "logits")),
            gib(at_step(exact(job), "gradients", "optimizer.state")),
        )
        for job in jobs
    ]
    return (
        "LoRA does not shrink activations or logits",
        [
            *prose(
                "Gradients still flow through every frozen layer, so what they need stays. A frozen linear layer "
                "only drops the input of its own weight, and its adapter keeps that input again. What LoRA saves is "
                "gradients and states. Qwen2.5-7B, 8 × 2,048 tokens, plain loss, no dropout:"
            ),
            *table(("", "activations", "logits", "gradients and states"), rows, right=(1, 2, 3)),
        ],
        [command(jobs[3])],
    )


def _two_cards() -> tuple[str, list[str], list[str]]:
    copies = {key: value for key, value in on_gpus(FULL, 2, 1, 8).items() if key != "shard"}
    ddp, shares = settled(copies), settled(on_gpus(FULL, 2, 1, 8))
    room = gib(exact(ddp).peak.capacity_bytes or 0)
    held = at_step(exact(ddp), "weights", "gradients", "optimizer.state", "ddp.buckets")
    return (
        "164 GB is not two cards of 80",
        prose(
            "A's worked total, 164 GB, is 82 GB on each of two cards even if every byte could be cut in half. Plain "
            "data parallelism cuts nothing: rule 13 says so itself, and each card would hold all 112 GB of the "
            f"policy. In the forecast, DDP on two H100s holds {gib(held)} on each in the weights of policy and "
            f"reference, gradients, states and buckets, and peaks at {gib(exact(ddp).peak.bytes)} of {room}: "
            f"{_verdict(exact(ddp))}. Under FSDP2 the same job peaks at {gib(exact(shares).peak.bytes)}: "
            f"{_verdict(exact(shares))}. The cache is small, and cache and activations are never there at the same "
            "time ([the worked total](#the-worked-total))."
        ),
        [command(ddp), command(shares)],
    )


def _verdict(answer: Forecast) -> str:
    return {"fits": "it fits", "tight": "it is tight", "does_not_fit": "it does not fit", None: ""}[answer.verdict]


def _residue() -> tuple[str, list[str], list[str]]:
    job = {**GRPO, **LORA, "micro_batch": "16", "accumulation": "1", "group": "8", "prompt_len": "1024",
           "response_len": "1024", "engine.max_len": "2048", "engine.fraction": "0.5"}  # fmt: skip
    answer = exact(job)
    asleep = worst(answer, ("backward",))
    sizes = {term.name: term.bytes for term in asleep.terms}
    stays = sum(sizes.get(name, 0) for name in ("engine.graphs", "engine.runtime"))
    pool = answer.groups[0].engines[0]
    need, states = gib(16 * 2048 * pool.kv_bytes_per_token), gib(at_step(exact(SFT), "optimizer.state"))
    return (
        "What stays is missing",
        [
            *prose(
                "Rule 6 is the larger of two sums, as if each phase began on an empty card. Qwen2.5-7B, GRPO + LoRA, "
                "16 × 2,048 tokens, `engine.fraction=0.5`:"
            ),
            f"- the sleeping engine keeps {gib(stays)} (CUDA graphs, buffers outside PyTorch);",
            f"- the CUDA context takes {gib(sizes['cuda.context'])}, and NCCL more on several GPUs;",
            f"- optimizer states ({gib(sizes['optimizer.state'])} of adapters here, {states} in full tuning) appear at",
            "  the first step and never leave: a job can run one step and fail in the second;",
            f"- the engine's pool is a fraction of the whole card, {gib(pool.pool_bytes)}, whatever the sequences",
            f"  need: {gib(pool.kv_bytes)} of it are cache, where the rollout needs {need}.",
            "",
        ],
        [command(job)],
    )


def _recipes() -> tuple[str, list[str], list[str]]:
    ddp = {"gpus": "2"}
    rows: list[tuple[str, str, str]] = []
    for name, changes in (
        ("bf16 weights", {}),
        ("bf16 weights, DDP", ddp),
        ("fp32 weights under autocast", {"weights_dtype": "fp32"}),
        ("fp32 weights, DDP", {"weights_dtype": "fp32", **ddp}),
    ):
        figures = recipe({**SFT, "micro_batch": "1", **changes})
        rows.append((name, " + ".join(figure for figure in figures[:-1] if figure != "0"), figures[-1]))
    rows.append(("Megatron: bf16 weights, fp32 gradients and master", "2 + 4 + 4 + 8", "18, quoted"))
    return (
        '"16 bytes" is one recipe of many',
        [
            *prose(
                "Bytes of a parameter in weights, gradients, states and DDP's buckets, Qwen2.5-7B at the optimizer "
                "step:"
            ),
            *table(("recipe", "parts", "bytes"), rows, right=(2,)),
        ],
        [command({**SFT, "micro_batch": "1", "weights_dtype": "fp32", **ddp})],
    )


def _speed() -> tuple[str, list[str], list[str]]:
    return (
        "Generation's share of a step is not a constant",
        prose(
            "A says 70 to 85 %. Over 55 published synchronous setups it is 9 to 93 %, median 57 %, and 15 of the 55 "
            "lie in A's range. Short responses with a large batch are near a third, tool-using agents near four "
            "fifths. It is a function of response length, concurrency and the update path, to be computed for a job, "
            "not quoted."
        ),
        [],
    )
