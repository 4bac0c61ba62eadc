"""Where the articles are wrong, as tests of the forecast. Sizes of Qwen2.5-7B are worked out from its config.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from tests.golden.qwen import FFN, HIDDEN, KV, KV_HEADS, LAYERS, PARAMS
from tests.jobs import phases, terms
from tests.rules_of_thumb.rulebook import by_rules, parts, static

from vramcast.estimate import forecast
from vramcast.types.job import Fact, Origin, Understanding, check_value
from vramcast.types.result import Peak, gets_through

GIB = 1 << 30
SFT = {"algorithm": "sft", "framework": "trl==1.16", "weights_dtype": "bf16", "micro_batch": 8, "seq_len": 2048}
GRPO = {"algorithm": "grpo", "framework": "trl==1.16", "weights_dtype": "bf16", "recompute": "full", "group": 8,
        "engine__kind": "vllm", "engine__sleep": "2"}  # fmt: skip
TOKENS = 8 * 2048


def _ask(gpus: int = 1, **values: object) -> dict[str, Any]:
    """The JSON of `check` without its levers."""
    job = {"model": "Qwen2.5-7B", "gpu": "h100-sxm-80gb", "gpus": gpus, **values}
    origin = Origin("test")
    facts = [
        Fact(path, check_value(path, str(raw), origin), origin)
        for path, raw in ((name.replace("__", "."), raw) for name, raw in job.items())
    ]
    return json.loads(msgspec.json.encode(forecast(Understanding(facts))))


@cache
def _sft(tuning: str, recompute: str, loss: str = "full", **more: object) -> dict[str, Any]:
    targets = {"lora__targets": "all-linear", "lora__dropout": 0} if tuning == "lora" else {}
    return _ask(**SFT, tuning=tuning, recompute=recompute, loss=loss, **targets, **more)


def _most(answer: dict[str, Any], *names: str) -> int:
    return max(sum(terms(phase).get(name, 0) for name in names) for phase in phases(answer).values())


def test_grouped_queries_need_a_tenth_of_the_rule() -> None:
    answer = _ask(algorithm="inference", weights_dtype="bf16", micro_batch=16, seq_len=4096)
    by_hand = 2 * LAYERS * KV * 2 * 16 * 4096
    assert KV_HEADS == 4
    assert _most(answer, "kv_cache") == by_hand == 7 * GIB // 2
    assert parts(by_rules("article/7b", algorithm="inference", micro_batch=16, seq_len=4096))["KV cache"] == 32


def test_rule_9_misses_a_layer_and_counts_the_rest_twice() -> None:
    answer = _sft("full", "full")
    kept = LAYERS * TOKENS * HIDDEN * 2
    assert _most(answer, "activations.saved") == kept
    (rule,) = (term for term in by_rules("Qwen2.5-7B", **SFT, recompute="full")["phases"][0]["terms"]
               if term["name"] == "activations")  # fmt: skip
    assert rule["bytes"] == 2 * kept
    mlp = 3 * TOKENS * FFN * 2  # at least gate, up and their product, of the layer that is run again
    assert _most(answer, "activations.block") > mlp


def test_logits_are_the_largest_surprise() -> None:
    plain, fused = _sft("full", "full"), _sft("full", "full", loss="fused")
    assert _most(plain, "logits") >= TOKENS * 152064 * 12 - GIB  # 12 bytes a logit in backward
    assert _most(plain, "logits") > 3 * _most(plain, "activations.saved", "activations.block")
    assert _most(plain, "logits") > 8 * _most(fused, "logits")
    named = {term["name"] for term in by_rules("article/7b")["phases"][0]["terms"]}
    assert "logits" not in named


def test_lora_shrinks_neither_activations_nor_logits() -> None:
    for recompute in ("none", "full"):
        full, lora = _sft("full", recompute), _sft("lora", recompute)
        assert _most(lora, "activations.saved", "activations.block") >= _most(
            full, "activations.saved", "activations.block"
        )
        assert _most(lora, "logits") >= _most(full, "logits")
        assert 50 * _most(lora, "gradients", "optimizer.state") < _most(full, "gradients", "optimizer.state")


def test_164_gb_do_not_fit_two_cards_even_perfectly_cut() -> None:
    assert 164 / 2 > 80
    work = {"algorithm": "grpo", "micro_batch": 4, "group": 8, "seq_len": 4096, "reference__kind": "copy"}
    alone = by_rules("article/7b", gpu="h100-sxm-80gb", gpus=2, **work, shard="none")
    assert sum(parts(alone)[name] for name in parts(alone) if name not in ("KV cache", "activations")) == 112
    assert static(alone) == 126
    assert alone["fits"] is False


def test_plain_data_parallelism_does_not_fit_and_shares_do() -> None:
    work = {**GRPO, "tuning": "full", "reference__kind": "copy", "micro_batch": 4, "prompt_len": 1024,
            "response_len": 3072, "engine__max_len": 4096, "engine__fraction": 0.22}  # fmt: skip
    copies, shares = (_ask(2, **work, shard=kind) for kind in ("none", "fsdp2"))
    assert copies["verdict"] == "does_not_fit"
    step = phases(copies)["step", "update", "steady"]["terms"]
    held = {(term["role"], term["name"]): term["bytes"] for term in step}
    names = ("weights", "gradients", "optimizer.state", "ddp.buckets")
    assert sum(held["policy", name] for name in names) == 10 * PARAMS
    assert held["reference", "weights"] == 2 * PARAMS
    assert copies["peak"]["capacity_bytes"] < 12 * PARAMS
    assert shares["peak"]["bytes"] < copies["peak"]["bytes"]
    assert shares["verdict"] == "tight"  # blocks that stay reserved
    assert gets_through("tight", msgspec.convert(shares["peak"], Peak))


def test_what_stays_while_the_engine_sleeps() -> None:
    work = {**GRPO, "tuning": "lora", "micro_batch": 16, "prompt_len": 1024, "response_len": 1024,
            "engine__max_len": 2048}  # fmt: skip
    half, more = (_ask(**work, engine__fraction=fraction) for fraction in (0.5, 0.6))
    asleep = terms(phases(half)["backward", "first block", "steady"])
    assert asleep["engine.graphs"] > GIB // 2
    assert {"engine.runtime", "cuda.context"} <= asleep.keys()
    assert "engine.kv" not in asleep
    assert "nccl" not in asleep
    assert "nccl" in terms(phases(_ask(2, **work, engine__fraction=0.5, shard="fsdp2"))[
        "backward", "first block", "steady"])  # fmt: skip
    first, later = (phases(half)["forward", "last block", when] for when in ("first", "steady"))
    assert "optimizer.state" not in terms(first)
    assert "optimizer.state" in terms(later)
    pools = [answer["groups"][0]["engines"][0]["pool_bytes"] for answer in (half, more)]
    capacity = half["peak"]["capacity_bytes"]
    assert pools == [-(-capacity * share // 10) for share in (5, 6)], "a share of the card, not a need"


def test_sixteen_bytes_is_one_recipe() -> None:
    found = {}
    for name, gpus, values in (
        ("bf16", 1, {}),
        ("bf16, DDP", 2, {}),
        ("fp32", 1, {"weights_dtype": "fp32"}),
        ("fp32, DDP", 2, {"weights_dtype": "fp32"}),
    ):
        answer = _ask(gpus, **{**SFT, "micro_batch": 1, **values}, tuning="full", recompute="full")
        step = terms(phases(answer)["step", "update", "steady"])
        held = sum(step.get(term, 0) for term in ("weights", "gradients", "optimizer.state", "ddp.buckets"))
        assert held % PARAMS == 0
        found[name] = held // PARAMS
    assert found == {"bf16": 8, "bf16, DDP": 10, "fp32": 16, "fp32, DDP": 20}


def test_megatron_and_the_share_of_generation_are_quoted() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "articles.md").read_text(encoding="utf-8")
    assert "| 2 + 4 + 4 + 8 | 18, quoted |" in guide
    assert "Over 55 published synchronous setups it is 9 to 93 %, median 57 %" in guide
