"""Rules 1 to 13 of the articles, as written. The figures are worked out by hand from the articles' formulas."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from tests.rules_of_thumb.rulebook import OPTIMIZER, by_rules, parts, static, sums

from vramcast.catalog import models
from vramcast.catalog.models import model_config

GRPO_LORA = {"algorithm": "grpo", "tuning": "lora", "micro_batch": 16, "seq_len": 2048}


def test_rule_1_sixteen_bytes_a_parameter() -> None:
    answer = by_rules("article/7b", tuning="full", recompute="full")
    found = parts(answer)
    assert [found.pop("activations")] == [Decimal(4)]  # TRL's micro-batch of 8, 1,024 tokens
    assert list(found.values()) == [14, 14, 28, 28, 28]
    assert sum(found[name] for name in OPTIMIZER) == 84 == 12 * 7
    assert static(answer) == 112 == 16 * 7


def test_rule_2_frozen_copies_hold_two_bytes() -> None:
    answer = by_rules("article/7b", algorithm="grpo", reference__kind="copy", reward__kind="model")
    assert parts(answer, role="reference") == {"weights": 14}
    assert parts(answer, role="reward") == {"weights": 14}
    verifier = by_rules("article/7b", algorithm="grpo", reference__kind="copy", reward__kind="rules")
    assert parts(verifier, role="reward") == {"weights": 0}


def test_rule_3_ppo_has_a_critic_and_grpo_has_none() -> None:
    ppo = by_rules("article/7b", algorithm="ppo")
    assert sum(parts(ppo, role="critic").values()) == 112
    assert [sum(parts(ppo, role=role).values()) for role in ("reference", "reward")] == [14, 14]
    assert static(ppo) == 252
    grpo = by_rules("article/7b", algorithm="grpo", reference__kind="copy")
    assert parts(grpo, role="critic") == {}
    assert static(grpo) == 126


def test_rule_4_inference_is_weights_and_cache() -> None:
    answer = by_rules("article/7b", algorithm="inference", micro_batch=16, seq_len=4096)
    assert parts(answer) == {"weights": 14, "KV cache": 32}
    assert answer["phases"][0]["terms"][1]["bytes"] == 4 * 32 * 4096 * 4096 * 16
    assert sums(answer) == {"generation": 46}


def test_rule_4_is_for_16_bit() -> None:
    answer = by_rules("article/7b", algorithm="inference", micro_batch=16, seq_len=4096, engine__kv_dtype="int8")
    assert parts(answer)["KV cache"] == 16


def test_rule_5_full_and_lora() -> None:
    work = {"micro_batch": 8, "seq_len": 2048, "recompute": "full"}
    assert sums(by_rules("article/7b", tuning="full", **work)) == {"training": 112 + 8}
    lora = by_rules("article/7b", tuning="lora", **work)
    assert parts(lora) == {"weights": 14, "adapters": 0, "activations": 8}
    assert sums(lora) == {"training": 22}


def test_rule_6_the_larger_of_two_sums() -> None:
    answer = by_rules("article/7b", **GRPO_LORA)
    assert sums(answer) == {"generation": 30, "training": 30}
    assert Decimal(answer["peak_gb"]) == 30
    separate = by_rules("article/7b", **GRPO_LORA, reference__kind="copy")
    assert sums(separate) == {"generation": 44, "training": 44}
    shared = by_rules("article/7b", **GRPO_LORA, reference__kind="adapter_off")
    assert sums(shared) == {"generation": 30, "training": 30}


def test_rule_7_a_reward_model_has_its_own_cache() -> None:
    answer = by_rules("article/7b", **GRPO_LORA, reward__kind="model")
    assert sums(answer) == {"generation": 4 * 7 + 2 * 16, "training": 30}
    assert answer["peak_phase"] == "generation"


def test_rule_8_activations_without_checkpointing() -> None:
    answer = by_rules("article/7b", recompute="none", micro_batch=1, seq_len=2048)
    by_hand = 2048 * 1 * (34 * 4096 + 5 * 32 * 2048) * 32
    term = answer["phases"][0]["terms"][-1]
    assert term["bytes"] == by_hand == 30_601_641_984
    assert Decimal(term["gb"]) == Decimal("28.5")
    assert "57 GB" in term["note"], "B multiplies by the precision once more"


def test_rule_8_where_h_does_not_divide() -> None:
    """1.5B of GPT-2: 5·a·s/h = 5·25·1000/1600 = 78.125, exact to the byte."""
    answer = by_rules("article/1.5b", recompute="none", micro_batch=3, seq_len=1000)
    assert answer["phases"][0]["terms"][-1]["bytes"] == 1000 * 3 * (34 * 1600 + 5 * 25 * 1000) * 48


@pytest.mark.parametrize(("batch", "gigabytes"), [(8, 8), (16, 16)])
def test_rule_9_activations_with_checkpointing(batch: int, gigabytes: int) -> None:
    answer = by_rules("article/7b", recompute="full", micro_batch=batch, seq_len=2048)
    assert parts(answer)["activations"] == gigabytes


@pytest.mark.parametrize(("dtype", "size"), [("fp32", "4"), ("bf16", "2"), ("fp16", "2"), ("int8", "1"),
                                            ("int4", "0.5")])  # fmt: skip
def test_rule_10_bytes_of_a_parameter(dtype: str, size: str) -> None:
    answer = by_rules("article/7b", algorithm="inference", weights_dtype=dtype)
    assert parts(answer)["weights"] == 7 * Decimal(size)


@pytest.mark.parametrize(("kind", "weights"), [("int8", "7"), ("nf4", "3.5"), ("gptq", "3.5"), ("awq", "3.5")])
def test_rule_10_for_quantised_bases(kind: str, weights: str) -> None:
    answer = by_rules("article/7b", tuning="lora", quant__kind=kind)
    assert parts(answer)["weights"] == Decimal(weights)
    assert parts(by_rules("article/7b", tuning="qlora"))["weights"] == Decimal("3.5")


def test_rule_11_optimizers() -> None:
    adam, momentum, adafactor = (
        by_rules("article/7b", optimizer=name) for name in ("adamw", "sgd_momentum", "adafactor")
    )
    assert sum(parts(adam)[name] for name in OPTIMIZER) == 84
    assert parts(momentum)["optimizer: momentum"] == 28 == 4 * 7
    (bound,) = (term for term in adafactor["phases"][0]["terms"] if term["name"] == "optimizer")
    assert (bound["bound"], Decimal(bound["gb"])) == (True, 84), "less than Adam; no number is given"
    assert adafactor["phases"][0]["bound"]


def test_rule_12_adapters_are_called_negligible() -> None:
    (adapters,) = (term for term in by_rules("article/7b", tuning="lora")["phases"][0]["terms"]
                   if term["name"] == "adapters")  # fmt: skip
    assert adapters["bytes"] == 0
    assert "0.1 to 1 %" in adapters["note"]


ACTIVATIONS = {"recompute": "full", "micro_batch": 8, "seq_len": 2048}


@pytest.mark.parametrize(
    ("gpus", "layout", "state", "activations"),
    [
        (4, {"shard": "none"}, (14, 14, 84), 8),
        (4, {"shard": "zero1"}, (14, 14, 21), 8),
        (4, {"shard": "zero2"}, (14, "3.5", 21), 8),
        (4, {"shard": "zero3"}, ("3.5", "3.5", 21), 8),
        (4, {"shard": "fsdp2"}, ("3.5", "3.5", 21), 8),
        (4, {"tp": 4}, ("3.5", "3.5", 21), 2),
        (4, {"pp": 4}, ("3.5", "3.5", 21), 8),
        (8, {"tp": 2, "pp": 2, "shard": "zero1"}, ("3.5", "3.5", "10.5"), 4),
    ],
)
def test_rule_13_cuts(gpus: int, layout: dict[str, object], state: tuple[object, ...], activations: int) -> None:
    found = parts(by_rules("article/7b", gpus=gpus, **ACTIVATIONS, **layout))
    held = (found["weights"], found["gradients"], sum(found[name] for name in OPTIMIZER))
    assert held == tuple(Decimal(str(size)) for size in state)
    assert found["activations"] == activations


def test_rule_13_does_not_cut_the_cache_or_frozen_copies() -> None:
    answer = by_rules("article/7b", gpus=2, algorithm="grpo", reference__kind="copy", shard="zero3", group=16,
                      seq_len=2048)  # fmt: skip
    assert parts(answer)["KV cache"] == 16
    assert parts(answer, role="reference") == {"weights": 14}


def test_odd_shares_are_exact() -> None:
    """A third of 14 GB is no decimal: the sum is made of fractions and rounded once."""
    answer = by_rules("article/7b", gpus=3, shard="zero3", **ACTIVATIONS)
    assert parts(answer)["weights"] == Decimal("4.666667")
    assert answer["phases"][0]["terms"][0]["bytes"] == -(-14_000_000_000 // 3)
    assert sums(answer) == {"training": Decimal("45.333333")}  # 112 / 3 + 8


def test_levers_of_a_move_parts_to_the_host() -> None:
    answer = by_rules("article/7b", algorithm="grpo", reference__kind="copy", offload__optimizer="cpu",
                      **{"reference.offload.weights": "cpu"})  # fmt: skip
    assert static(answer) == 28
    assert parts(answer, role="reference") == {"weights": 0}


def test_any_model_of_the_catalogue() -> None:
    answer = by_rules("Qwen2.5-7B", tuning="full")
    assert answer["model"] == {"name": "Qwen/Qwen2.5-7B", "layers": 28, "hidden": 3584, "heads": 28,
                               "params": 7_615_616_512}  # fmt: skip
    assert sum(term["bytes"] for term in answer["phases"][0]["terms"][:-1]) == 16 * 7_615_616_512


def test_a_model_type_that_the_forecast_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four numbers are enough: the catalogue's row has them, under its text model if it reads images."""
    text = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    row = {"id": "a/new", "params": 1000, "config": {"model_type": "new", "text_config": text}, "source": "s"}
    monkeypatch.setattr(models, "_catalogue", lambda: json.dumps(row, separators=(",", ":")).encode())
    answer = by_rules("a/new", tuning="full")
    assert answer["model"] == {"name": "a/new", "layers": 2, "hidden": 64, "heads": 4, "params": 1000}


def test_a_users_config_is_counted(tmp_path: Path) -> None:
    row = model_config("Qwen2.5-7B")
    (tmp_path / "config.json").write_text(json.dumps(row.config), encoding="utf-8")
    assert by_rules(str(tmp_path))["model"]["params"] == row.params == 7_615_616_512
