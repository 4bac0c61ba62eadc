"""Adapters: counts worked by hand, dtypes, what is refused and in which words, and laws over ranks and shapes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.models.adapters import AdapterCount, count, lora_adapter, read_adapter
from vramcast.models.adapters.match import pattern_value
from vramcast.models.adapters.modules import tree
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout

LLAMA = "meta-llama/Llama-3.2-3B"
"""28 layers of width 3,072: q 3,072 × 3,072, k and v 1,024 × 3,072, MLP of 8,192; head tied, 128,256 tokens"""
BASE = 3_212_749_824
QV = ["q_proj", "v_proj"]


def layout(name: str = LLAMA) -> Layout:
    return build_layout(name, model_config(name).config, name)


def counted(name: str = LLAMA, **fields: Any) -> AdapterCount:
    return count(
        layout(name), read_adapter({"peft_type": "LORA", "target_modules": QV, **fields}, "adapter_config.json")
    )


def refusal(name: str = LLAMA, **fields: Any) -> str:
    with pytest.raises(Refused) as caught:
        counted(name, **fields)
    return str(caught.value)


def test_lora_on_queries_and_values() -> None:
    # 28 layers × 32 × ((3,072 + 3,072) + (3,072 + 1,024)) = 9,175,040: what PEFT printed for this run
    found = counted(r=32)
    assert (found.trainable, found.total) == (9_175_040, BASE + 9_175_040)
    assert found.modules == {"q_proj": 28 * 32 * 6144, "v_proj": 28 * 32 * 4096}


def test_what_trains_with_biases_and_copies() -> None:
    plain, saved = counted(r=8), counted(r=8, modules_to_save=["embed_tokens", "lm_head"])
    # the head is tied, and copied apart from the embedding: twice 128,256 × 3,072
    assert saved.trainable - plain.trainable == saved.total - plain.total == 2 * 128_256 * 3072
    tied = counted(r=8, modules_to_save=["lm_head"], ensure_weight_tying=True)
    assert tied.trainable - plain.trainable == 128_256 * 3072
    qwen = "Qwen/Qwen2.5-7B"  # biases of q, k and v: 3,584 + 512 + 512 in each of 28 layers
    none, every = (counted(qwen, r=8, bias=kind) for kind in ("none", "all"))
    adapted = counted(qwen, r=8, bias="lora_only")
    assert every.trainable - none.trainable == 28 * (3584 + 512 + 512)
    assert adapted.trainable - none.trainable == 28 * (3584 + 512)
    assert every.total == none.total


def test_packed_experts_take_a_pair_of_each_expert() -> None:
    # 48 layers × 128 experts × rank 8 × (gate and up: 2,048 + 1,536; down: 768 + 2,048)
    name = "Qwen/Qwen3-30B-A3B"
    named = counted(name, r=8, target_modules=[], target_parameters=["experts.gate_up_proj", "experts.down_proj"])
    assert named.trainable == 48 * 128 * 8 * (2048 + 1536 + 768 + 2048)
    # by the names of transformers 4 gate and up are packed, with the ranks of both
    old = counted(name, r=8, target_modules=["gate_proj", "up_proj", "down_proj"])
    assert old.trainable == 48 * 128 * (16 * (2048 + 1536) + 8 * (768 + 2048))
    assert "gate_proj is packed into gate_up_proj, so up_proj must be targeted too" in refusal(
        name, target_modules=["gate_proj"]
    )


def test_the_paths_of_a_job_are_the_same_adapter() -> None:
    job = lora_adapter(16, QV, rank_pattern={"v_proj": 4}, save_modules=["lm_head"])
    assert count(layout(), job) == counted(r=16, rank_pattern={"v_proj": 4}, modules_to_save=["lm_head"])
    assert count(layout(), lora_adapter(8, ["all-linear"])).trainable == counted(target_modules="all-linear").trainable
    with pytest.raises(Refused, match=r"lora\.targets: q_porj matches no module"):
        count(layout(), lora_adapter(8, ["q_porj"]))


def test_mistakes_are_said_together_with_what_exists() -> None:
    text = refusal(target_modules=["q_porj", "v_proj"], rank_pattern={"k_proj": 4}, modules_to_save=["lm_haed"])
    assert "error: target_modules: q_porj matches no module" in text
    assert "near     q_proj" in text
    assert "allowed  q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj" in text
    assert "rank_pattern: k_proj matches no adapted module" in text
    assert "modules_to_save: lm_haed matches no module" in text
    assert text.count("from     adapter_config.json") == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"r": 4096}, "the rank 4096 is above the width 3072: model.layers.0.self_attn.q_proj and 55 more"),
        ({"rank_pattern": {r"layers\.3\.self_attn\.q_proj": 4000}}, "above the width 3072: model.layers.3.self_attn.q"),
        ({"r": 0}, "the rank r = 0 must be a whole number above 0"),
        ({"layers_to_transform": [28]}, "layers_to_transform: the model has no layer 28"),
        ({"target_modules": ".*("}, "is not a regular expression"),
        ({"target_modules": ["input_layernorm"]}, "not norms: model.layers.0.input_layernorm and 27 more"),
        ({"target_modules": ["mlp"]}, "not modules that hold others"),
        ({"target_parameters": ["experts.down_proj"]}, "target_parameters: experts.down_proj matches no parameter"),
        ({"bias": "some"}, "bias = 'some' is not known"),
        ({"modules_to_save": ["mlp", "up_proj"]}, "which holds it"),
        ({"init_lora_weights": "gausian"}, "is not known: gaussian"),
        ({"init_lora_weights": "eva"}, "moves ranks between layers by data"),
        ({"lora_bias": True, "use_dora": True}, "lora_bias does not go with use_dora"),
        ({"arrow_config": {}}, "arrow_config is not counted: it routes between adapters that it loads from files"),
        ({"task_type": "SEQ_CLS"}, "trains a head that a language model's layout does not have"),
        ({"layers_pattern": "layers"}, "layers_pattern needs layers_to_transform"),
        ({"r": "8"}, "r must be a whole number, not '8'"),
        ({"rnak": 8}, "has no field rnak"),
        ({"peft_type": "VERRA"}, "unknown peft_type 'VERRA'"),
        ({"peft_type": "BONE"}, "replaced by MISS"),
        ({"peft_type": "ADAMSS"}, "clustering the values of the weights"),
        ({"peft_type": "FROD"}, "computes on the values of the weights"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], words: str) -> None:
    assert words in refusal(**fields)


def test_models_that_peft_refuses_are_refused_in_its_place() -> None:
    assert "PEFT refuses LORA on out_proj of falcon_h1" in refusal(
        "tiiuae/Falcon-H1-1.5B-Base", target_modules="all-linear"
    )
    assert "not modules of their own class: model.layers.0.mlp.router" in refusal(
        "openai/gpt-oss-20b", target_modules=["router"]
    )
    with pytest.raises(Refused, match="PEFT has no targets of LORA for phi3: target_modules must say them"):
        count(layout("microsoft/Phi-3-mini-4k-instruct"), read_adapter({"peft_type": "LORA"}, "x"))


def test_modules_are_known_by_name_and_shape() -> None:
    found = tree(layout("Qwen/Qwen3-30B-A3B"))
    kinds = {name: found.modules[f"model.layers.0.{name}"].kind for name in ("mlp.gate", "mlp.experts", "self_attn")}
    assert kinds == {"mlp.gate": "other", "mlp.experts": "other", "self_attn": "container"}
    assert (found.embedding, found.head) == ("model.embed_tokens", "lm_head")
    assert tree(layout()).modules["lm_head"].shape == (128_256, 3072)


@given(st.integers(1, 1024), st.integers(1, 1024))
@settings(max_examples=25)
def test_trainable_grows_in_step_with_the_rank(small: int, large: int) -> None:
    one = layout("HuggingFaceTB/SmolLM2-135M")
    width = 576  # above it a rank is refused
    ranks = (1 + small % width, 1 + large % width)
    counts = [count(one, lora_adapter(r, QV)).trainable for r in ranks]
    assert counts[0] * ranks[1] == counts[1] * ranks[0]


@given(st.text("abc_", min_size=1, max_size=6), st.text("abc_", min_size=1, max_size=6))
def test_a_pattern_matches_whole_last_parts(name: str, pattern: str) -> None:
    found = pattern_value({pattern: 1}, f"model.layers.0.{name}", 0)
    assert found == (1 if name == pattern else 0)
