"""Adapters: counts worked by hand, dtypes, what is refused and in which words, and laws over ranks and shapes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.models.adapters import AdapterCount, count, dtype_of, lora_adapter, read_adapter
from vramcast.models.adapters.lowrank import factors
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
    assert (found.trainable, found.total, found.base) == (9_175_040, BASE + 9_175_040, BASE)
    assert found.tensors[0].name == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    assert found.tensors[0].shape == (32, 3072)
    assert len(found.shapes()) == 28 * 4
    part = found.parts()[1]
    assert (part.name, part.trainable, part.tensors) == ("model.layers.0.self_attn.v_proj", 32 * 4096, 2)


MEASURED: list[tuple[dict[str, Any], int]] = [
    ({"r": 64, "use_rslora": True}, 18_350_080),
    # A of q and v, 28 × 2 × 32 × 3,072: MiCA freezes B
    ({"r": 32, "init_lora_weights": "mica"}, 5_505_024),
    # 28 × 14 × (3 × 3,072 + 3 × 8,192 ÷ 2): the wide side of each is cut in 2 blocks
    (
        {
            "r": 14,
            "target_modules": ["gate_proj", "up_proj", "down_proj"],
            "use_bdlora": {
                "target_modules_bd_a": ["down_proj"],
                "target_modules_bd_b": ["gate_proj", "up_proj"],
                "nblocks": 2,
            },
        },
        8_429_568,
    ),
    ({"peft_type": "ADAPTION_PROMPT", "target_modules": None, "adapter_len": 100, "adapter_layers": 28}, 8_601_628),
    ({"peft_type": "BEFT", "target_modules": ["v_proj"]}, 28_672),
    ({"peft_type": "BOFT"}, 802_816),
    ({"peft_type": "C3A", "block_size": 64}, 5_505_024),
    ({"peft_type": "DEFT", "r": 32, "para": True}, 3_670_016),
    # 28 × 2 × (3,072 + ⌊3,072² × 0.02⌋)
    ({"peft_type": "FROD", "sparse_rate": 0.02}, 10_741_640),
    ({"peft_type": "GRALORA", "r": 32}, 9_175_040),
    # down_proj scales its 8,192 inputs, k and v their 1,024 outputs
    ({"peft_type": "IA3", "target_modules": None}, 286_720),
    # of each target: A of layers 0 and 14, one B of 2 experts, and 28 routers of 2 × 140
    (
        {
            "peft_type": "LILY",
            "r": 140,
            "stride_A": 14,
            "num_B": 2,
            "target_modules": ["gate_proj", "up_proj", "down_proj"],
        },
        9_485_280,
    ),
    ({"peft_type": "LOHA", "r": 32}, 18_350_080),
    # 32 blocks of 96: 32 × 96 × 95 ÷ 2 for each of 56 modules
    ({"peft_type": "OFT", "r": 32, "oft_block_size": 0}, 8_171_520),
    # 128 directions of each of 7 modules a layer: 28 × 128 × (sides + 1)
    (
        {
            "peft_type": "OSF",
            "effective_rank": 3072 - 128,
            "rank_pattern": {"[kv]_proj": 1024 - 128},
            "target_modules": [*QV, "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        },
        28 * 128 * (2 * 6145 + 2 * 4097 + 3 * 11265),
    ),
    ({"peft_type": "PEANUT", "r": 32}, 7_340_032),
    # keys are 1,024 wide: 28 layers × 2 × 1,024 × 200 tokens
    ({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 200, "task_type": "CAUSAL_LM"}, 11_468_800),
    ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 200, "task_type": "CAUSAL_LM"}, 614_400),
    ({"peft_type": "P_TUNING", "num_virtual_tokens": 20, "task_type": "CAUSAL_LM"}, 28_382_208),
    ({"peft_type": "PSOFT", "r": 256}, 1_856_512),
    ({"peft_type": "ROAD", "variant": "road_2"}, 229_376),
    ({"peft_type": "TINYLORA", "weight_tying": 1.0}, 64),
]
"""configurations of runs of PEFT's own comparison on this model, and the trainable parameters that it printed"""


@pytest.mark.parametrize(("fields", "trainable"), MEASURED, ids=lambda one: str(one)[:40])
def test_what_peft_printed_for_published_runs(fields: dict[str, Any], trainable: int) -> None:
    config = {"peft_type": "LORA", **({} if "TUNING" in str(fields) else {"target_modules": QV}), **fields}
    found = count(layout(), read_adapter(config, "adapter_config.json"))
    assert (found.trainable, found.base) == (trainable, BASE)


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
    inner, _, outer, _ = named.tensors[:4]
    assert inner.name.endswith("layers.0.mlp.experts.base_layer.lora_A.default.weight")
    assert (inner.shape, outer.shape) == ((1024, 2048), (1024, 768))
    # by the names of transformers 4 gate and up are packed, with the ranks of both
    old = counted(name, r=8, target_modules=["gate_proj", "up_proj", "down_proj"])
    assert old.trainable == 48 * 128 * (16 * (2048 + 1536) + 8 * (768 + 2048))
    assert "gate_proj is packed into gate_up_proj, so up_proj must be targeted too" in refusal(
        name, target_modules=["gate_proj"]
    )


def test_dtypes() -> None:
    found = counted(r=8, modules_to_save=["lm_head"], use_dora=True)
    by_name = {tensor.name.split(".default")[0].rpartition(".")[2]: tensor for tensor in found.tensors}
    dora, copy, a = by_name["lora_magnitude_vector"], by_name["modules_to_save"], by_name["lora_A"]
    assert [dtype_of(one, "bf16") for one in (a, dora, copy)] == ["fp32", "fp32", "bf16"]
    assert [dtype_of(one, "bf16", "none") for one in (a, dora, copy)] == ["bf16", "bf16", "bf16"]
    assert [dtype_of(one, "fp32", "trl-quantised") for one in (a, dora, copy)] == ["bf16", "fp32", "bf16"]
    ranks = [
        count(layout(), read_adapter({"peft_type": "ADALORA", "total_step": 9}, "x"), dtype).trainable
        for dtype in ("fp32", "bf16")
    ]
    assert ranks[1] - ranks[0] == 56  # the current rank of each module: upcast, it trains


def test_buffers_are_held_and_not_counted() -> None:
    found = counted(peft_type="VERA", r=256)
    assert found.trainable == 28 * ((3072 + 256) + (1024 + 256)) == found.total - BASE
    assert [one.shape for one in found.buffers] == [(256, 3072), (3072, 256)]
    assert {one.device for one in counted(peft_type="BOFT").buffers} == {"host"}


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
        ({"trainable_token_indices": [128_256]}, "has no row 128256"),
        ({"use_dora": True, "kasa_config": {}}, "PEFT has no LoRA that is use_dora and kasa_config at once"),
        ({"init_lora_weights": "gausian"}, "is not known: gaussian"),
        ({"init_lora_weights": "eva"}, "moves ranks between layers by data"),
        ({"lora_bias": True, "use_dora": True}, "lora_bias does not go with use_dora"),
        ({"arrow_config": {}}, "arrow_config is not counted: it routes between adapters that it loads from files"),
        ({"task_type": "SEQ_CLS"}, "trains a head that a language model's layout does not have"),
        ({"layers_pattern": "layers"}, "layers_pattern needs layers_to_transform"),
        ({"r": "8"}, "r must be a whole number, not '8'"),
        ({"rnak": 8}, "has no field rnak"),
        ({"peft_type": "C3A", "block_size": 100}, "block_size = 100 does not divide the 3072 inputs"),
        ({"peft_type": "VBLORA", "vector_length": 100}, "vector_length = 100 does not divide"),
        ({"peft_type": "GRALORA", "gralora_k": 3}, "gralora_k = 3 does not divide r = 32"),
        ({"peft_type": "ROAD", "variant": "road_3"}, "variant = 'road_3' is not known"),
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 4}, "has no field target_modules"),
        ({"peft_type": "VERRA"}, "unknown peft_type 'VERRA'"),
        ({"peft_type": "BONE"}, "replaced by MISS"),
        ({"peft_type": "ADAMSS"}, "clustering the values of the weights"),
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


@given(st.integers(1, 5000), st.integers(-1, 100).filter(bool))
def test_factors_make_the_number(size: int, near: int) -> None:
    small, large = factors(size, near)
    assert small * large == size
    assert near > 0 or small <= large


@given(st.text("abc_", min_size=1, max_size=6), st.text("abc_", min_size=1, max_size=6))
def test_a_pattern_matches_whole_last_parts(name: str, pattern: str) -> None:
    found = pattern_value({pattern: 1}, f"model.layers.0.{name}", 0)
    assert found == (1 if name == pattern else 0)
