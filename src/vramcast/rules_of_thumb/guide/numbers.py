"""The articles' numbers, one row each: what is printed, what the rule gives, what is exact for Qwen2.5, and why."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from vramcast.rules_of_thumb.guide.ask import GENERATE, LORA, SFT, at_step, exact, gb, gib, most, prose, rules, table
from vramcast.rules_of_thumb.lines import decimal

_STATIC = ("weights", "gradients", "optimizer: fp32 master", "optimizer: momentum", "optimizer: variance")
_OPTIMIZER = _STATIC[2:]
_72B = {"model": "Qwen2.5-72B"}
_KV_SHAPES = (("8", "2048"), ("16", "2048"), ("16", "4096"))


def numbers() -> list[str]:
    """The table."""
    return [
        "## Their numbers",
        "",
        *prose(
            "*Equal*: the rule gives the printed figure. *Bound*: the article prints a limit, and the rule stays "
            "within it. *Quoted*: no rule of theirs gives the figure. Exact figures are for Qwen2.5 models with the "
            "settings above."
        ),
        *table(
            ("case", "article", "rule", "exact", "why they differ"),
            [*_static(), *_bytes(), *_sequences(), *_training(), *_jobs(), *_verl()],
        ),
    ]


def _tb(amount: Decimal) -> str:
    return f"{amount / 1000:.2f} TB" if amount >= 1000 else f"{amount:,} GB"


def _sum(model: str, *parts: str, **values: str) -> Decimal:
    """Parts of the rules' largest sum, in the article's GB."""
    answer = rules(model, **values)
    (phase,) = (phase for phase in answer.phases if phase.name == answer.peak_phase)
    return sum((term.gb for term in phase.terms if not parts or term.name in parts), Decimal(0))


def _held(fp32: bool = False, **job: str) -> str:
    chosen = {**SFT, **job, **({"weights_dtype": "fp32"} if fp32 else {})}
    return gb(at_step(exact(chosen), "weights", "gradients", "optimizer.state"))


def _static() -> list[tuple[str, ...]]:
    recipe = "the recipe: 8 bytes a parameter with bf16 weights, 16 with fp32 weights"
    seven, large, largest = (_sum(model, *_STATIC) for model in ("article/7b", "article/70b", "article/72b"))
    copy = gb(at_step(exact({**SFT, **LORA}), "weights"))
    return [
        ("7B policy, static", "112 GB (A, B)", f"equal: {_tb(seven)}", f"{_held()} or {_held(True)}", recipe),
        ("70B policy, static", "over 1.1 TB (A)", f"equal: {_tb(large)}", "–", "no Qwen2.5 of that size"),
        (
            "72B policy, static", "1.15 TB (B)", f"equal: {_tb(largest)}",
            f"{_held(model='Qwen2.5-72B')} or {_held(True, model='Qwen2.5-72B')}", recipe,
        ),
        (
            "7B reference; reward model", "14 GB each (A)", f"equal: {_sum('article/7b', 'weights'):,} GB", copy,
            "7.6 × 10^9 parameters, not 7",
        ),
        (
            "GPT-2 1.5B, Adam states", "18 GB (A)", f"equal: {_sum('article/1.5b', *_OPTIMIZER):,} GB", "–",
            "12 bytes are one recipe of many: see below",
        ),
    ]  # fmt: skip


def _bytes() -> list[tuple[str, ...]]:
    step = exact(SFT)
    optimizer, gradients = _sum("article/7b", *_OPTIMIZER), _sum("article/7b", "gradients")
    return [
        (
            "7B optimizer; gradients", "84; 14 GB (B)", f"equal: {optimizer:,}; {gradients:,} GB",
            f"{gb(at_step(step, 'optimizer.state'))}; {gb(at_step(step, 'gradients'))}",
            "two bf16 states and no fp32 copy; fp32 weights double both",
        ),
        *(
            (
                f"{size} parameters in fp32 / bf16 / int8 / int4", printed, f"equal: {_dtypes(model)} GB",
                " / ".join(gb(most(exact({**GENERATE, "model": real, "weights_dtype": dtype}), "weights"))
                           for dtype in ("fp32", "bf16")),
                "exact parameters; quantised bases hold scales and 16-bit embeddings too",
            )
            for size, model, real, printed in (
                ("7B", "article/7b", "Qwen2.5-7B", "28 / 14 / 7 / 3.5 GB (B)"),
                ("72B", "article/72b", "Qwen2.5-72B", "288 / 144 / 72 / 36 GB (B)"),
            )
        ),
    ]  # fmt: skip


def _dtypes(model: str) -> str:
    amounts = (_sum(model, "weights", algorithm="inference", weights_dtype=dtype)
               for dtype in ("fp32", "bf16", "int8", "int4"))  # fmt: skip
    return " / ".join(f"{amount:,}" for amount in amounts)


def _sequences() -> list[tuple[str, ...]]:
    caches = " / ".join(f"{_sum('article/7b', 'KV cache', algorithm='inference', micro_batch=b, seq_len=s):,}"
                        for b, s in _KV_SHAPES)  # fmt: skip
    real = " / ".join(f"{most(exact({**GENERATE, 'micro_batch': b, 'seq_len': s}), 'kv_cache') / 2**30:.2f}"
                      for b, s in _KV_SHAPES)  # fmt: skip
    large = _sum("article/72b", "KV cache", algorithm="inference", micro_batch="8", seq_len="2048")
    large_real = most(exact({**GENERATE, **_72B, "micro_batch": "8", "seq_len": "2048"}), "kv_cache")
    kept = " / ".join(f"{_sum('article/7b', 'activations', recompute='full', micro_batch=b, seq_len='2048'):,}"
                      for b in ("8", "16"))  # fmt: skip
    answers = [exact({**SFT, "micro_batch": b}) for b in ("8", "16")]
    running = " / ".join(gib(most(answer, "activations.saved", "activations.block")) for answer in answers)
    return [
        (
            "KV, 7B: 8 × 2048 / 16 × 2048 / 16 × 4096", "8 / 16 / 32 GB (B)", f"equal: {caches} GiB", f"{real} GiB",
            "28 layers, width 3,584, and 4 key heads of 28",
        ),
        ("KV, 72B: 8 × 2048", "40 GB (B)", f"equal: {large:,} GiB", gib(large_real), "8 key heads of 64"),
        (
            "activations with checkpointing, 7B: 8 / 16 × 2048", "8 / 16 GB (B)", f"equal: {kept} GiB", running,
            "one hidden state a layer is kept, not two; one layer's recomputation comes on top",
        ),
    ]  # fmt: skip


def _training() -> list[tuple[str, ...]]:
    generation = exact(GENERATE)
    lora = exact({**SFT, **LORA})
    big = {**SFT, **LORA, **_72B, "micro_batch": "1"}
    by_batch = {b: _sum("article/72b", tuning="lora", micro_batch=b, seq_len="2048", recompute="full")
                for b in ("3", "8")}  # fmt: skip
    return [
        (
            "inference, 7B: 16 × 4096", "46 GB (B)",
            f"equal: {_sum('article/7b', algorithm='inference', micro_batch='16', seq_len='4096'):,} GB",
            gib(generation.peak.bytes),
            f"a small cache, and {gib(most(generation, 'activations.block'))} to read the prompts",
        ),
        (
            "LoRA, 7B: static; with activations", "14; ~22 GB (B)",
            f"equal: {_sum('article/7b', 'weights', tuning='lora'):,}; "
            f"{_sum('article/7b', tuning='lora', micro_batch='8', seq_len='2048', recompute='full'):,} GB",
            f"{gb(at_step(lora, 'weights', 'adapters', 'optimizer.state'))}; {gib(lora.peak.bytes)}",
            "8 × 2,048 tokens with checkpointing",
        ),
        (
            "LoRA, 72B: static; with activations", "144; ~160 GB (B)",
            f"equal: {_sum('article/72b', 'weights', tuning='lora'):,} GB; quoted: the rule gives {by_batch['3']:,} GB "
            f"for 3 sequences of 2,048 and {by_batch['8']:,} for 8",
            f"{gb(at_step(exact(big), 'weights', 'adapters', 'optimizer.state'))}; {gib(exact(big).peak.bytes)}",
            "the article does not say for which batch; the exact figure is for one sequence",
        ),
    ]  # fmt: skip


def _jobs() -> list[tuple[str, ...]]:
    lora = {"algorithm": "grpo", "tuning": "lora", "micro_batch": "16", "seq_len": "2048"}
    both = " and ".join(f"{phase.gb:,}" for phase in rules("article/7b", **lora).phases)
    full = {"algorithm": "grpo", "micro_batch": "8", "group": "8", "seq_len": "4096", "recompute": "full",
            "reference__kind": "copy", "reward__kind": "rules"}  # fmt: skip
    static, total = _sum("article/7b", *_STATIC, **full), _sum("article/7b", **full)
    large, large_total = _sum("article/70b", *_STATIC, **full), _sum("article/70b", **full)
    return [
        (
            "GRPO + LoRA, 7B, 16 × 2048: generation; training", "~30 GB each (B)", f"equal: {both} GB",
            "see [One H100](#one-h100)", "two copies of the weights, small cache, a pool set by a fraction",
        ),
        (
            "GRPO full, 7B, copy, rules, 8 × 4096", "164.0 GB (A)",
            f"bound: {static:,} static, {total:,} with cache and activations; the rest is not split in the text",
            "see [The worked total](#the-worked-total)", "cache and activations are never there at the same time",
        ),
        (
            "the same with 70B", "over 1.6 TB (A)",
            f"equal: {_tb(large)} static; quoted: the rule gives {_tb(large_total)} in all", "–",
            "the article does not say which sum gives 1.6",
        ),
    ]  # fmt: skip


def _verl() -> list[tuple[str, ...]]:
    thirty_two = decimal(Fraction(_sum("article/32b", algorithm="inference", micro_batch="1", seq_len="2048")))
    return [
        (
            "one H100, GRPO + LoRA, 2048 tokens: 7B 8–16, 14B 4–8, 32B no, 72B no", "(B)",
            f"equal for 7B and 72B; quoted for 14B and 32B: the rule gives {thirty_two:,} GB for 32B and one "
            f"sequence, and {_sum('article/32b', algorithm='inference', micro_batch='6', seq_len='2048'):,} for 6, "
            "which is below 80",
            "see [One H100](#one-h100)", "the engine's second copy of the weights decides, not the batch",
        ),
        (
            "verl: 7B on 1 H100, LoRA, batch 16; 32B on 4, 180; 72B on 8, full, 176", "(B)",
            "quoted from verl's documentation", "–", "the article does not say what is counted in a batch there",
        ),
    ]  # fmt: skip
