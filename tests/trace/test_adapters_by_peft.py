"""Methods that PEFT itself counts on the meta device: published counts, and one case of each method."""

from __future__ import annotations

from typing import Any

import pytest
from tests.models.peft_counts import shrunk

from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.models.adapters import AdapterCount, as_said, by_peft, read_adapter
from vramcast.models.adapters.methods import REFUSED, fusions
from vramcast.trace.question import AdapterQuestion

pytestmark = pytest.mark.trace
pytest.importorskip("peft", reason="PEFT counts nothing (extra `trace`)")

LLAMA = "meta-llama/Llama-3.2-3B"
"""28 layers of width 3,072: q 3,072 × 3,072, k and v 1,024 × 3,072, MLP of 8,192; head tied, 128,256 tokens"""
BASE = 3_212_749_824
QV = ["q_proj", "v_proj"]


def counted(config: dict[str, Any], adapter: dict[str, Any], dtype: str = "bf16") -> AdapterCount:
    from vramcast.trace.child.adapters import count

    found = read_adapter(adapter, "adapter_config.json")
    assert by_peft(found)
    return count(AdapterQuestion(config=config, adapter=as_said(found), dtype=dtype))


MEASURED: list[tuple[dict[str, Any], int]] = [
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


def test_what_peft_printed_for_published_runs() -> None:
    model = model_config(LLAMA).config
    for fields, trainable in MEASURED:
        config = {"peft_type": "LORA", **({} if "TUNING" in str(fields) else {"target_modules": QV}), **fields}
        found = counted(model, config)
        assert (fields, found.trainable) == (fields, trainable)
        assert sum(found.modules.values()) == trainable


_T = {"target_modules": [*QV, "down_proj"]}
OTHERS: list[dict[str, Any]] = [
    {"peft_type": "ADALORA", "total_step": 10},
    {"peft_type": "BEFT"},
    {"peft_type": "BEFT"},
    {"peft_type": "BOFT"},
    {"peft_type": "BOFT", "boft_block_size": 0, "boft_block_num": 8, "bias": "boft_only"},
    {"peft_type": "C3A", "block_size": 16},
    {"peft_type": "C3A", "block_size": 16, "block_size_pattern": {"down_proj": 8}},
    {"peft_type": "DEFT"},
    {"peft_type": "DEFT", "para": True, "decomposition_method": "qr"},
    {"peft_type": "DELORA", "r": 4, "rank_pattern": {"v_proj": 2}},
    {"peft_type": "FOURIERFT", "n_frequency": 50, "n_frequency_pattern": {"v_proj": 20}},
    {"peft_type": "GLORA", "r": 4},
    {"peft_type": "GLORA", "r": 4, "config_A_B": "vector", "config_C": "vector", "config_D_E": "vector"},
    {"peft_type": "GLORA", "r": 4, "config_A_B": "none"},
    {"peft_type": "GLORA", "r": 4, "config_A_B": "constant"},
    {"peft_type": "GRALORA", "r": 8, "gralora_k": 2, "hybrid_r": 4},
    {"peft_type": "GRALORA", "r": 8, "gralora_k": 4},
    {
        "peft_type": "HIRA",
        "r": 8,
        "rank_pattern": {"v_proj": 2},
        "target_modules": ["q_proj", "v_proj", "embed_tokens"],
    },
    {"peft_type": "HRA"},
    {"peft_type": "IA3"},
    {"peft_type": "IA3", "feedforward_modules": ["down_proj"]},
    {"peft_type": "LILY", "r": 8, "stride_A": 2, "num_B": 3},
    {"peft_type": "LILY", "r": 8, "target_modules": r".*\.(q|v)_proj"},
    {"peft_type": "LN_TUNING"},
    {"peft_type": "LN_TUNING", "target_modules": ["input_layernorm"], "modules_to_save": ["lm_head"]},
    {"peft_type": "LOHA"},
    {"peft_type": "LOKR"},
    {"peft_type": "LOKR", "r": 2, "decompose_both": True, "decompose_factor": 4},
    {"peft_type": "LOKR", "r": 1, "decompose_both": True},
    {"peft_type": "MISS", "r": 16},
    {"peft_type": "MISS", "r": 16, "init_weights": "bat"},
    {"peft_type": "MISS", "r": 16, "init_weights": "mini", "mini_r": 8},
    {"peft_type": "OFT"},
    {"peft_type": "OFT", "r": 5, "oft_block_size": 0, "target_modules": ["q_proj", "embed_tokens"]},
    {"peft_type": "OFT", "oft_block_size": 24, "block_share": True},
    {"peft_type": "OSF"},
    {"peft_type": "OSF", "effective_rank": 0.25, "rank_pattern": {"v_proj": 10}},
    {"peft_type": "PEANUT", "r": 8, "depth": 2},
    {"peft_type": "POLY", "r": 4, "n_tasks": 3, "n_splits": 2},
    {"peft_type": "PSOFT", "r": 8},
    {"peft_type": "PSOFT", "r": 8, "psoft_orth": False, "psoft_mag_a": False},
    {"peft_type": "PVERA", "r": 16},
    {"peft_type": "RANDLORA", "r": 7},
    {"peft_type": "ROAD", "variant": "road_4", "group_size": 16},
    {"peft_type": "SHIRA", "r": 8},
    {"peft_type": "SUPERTUNING"},
    {"peft_type": "SUPERTUNING", "sparsity": 0.9, "r": 4},
    {"peft_type": "TINYLORA", "u": 12},
    {"peft_type": "TINYLORA", "u": 12, "weight_tying": 0.6},
    {"peft_type": "TRAINABLE_TOKENS", "token_indices": [0, 3, 4]},
    {"peft_type": "UNILORA", "theta_d_length": 100},
    {"peft_type": "VBLORA", "num_vectors": 20, "vector_length": 16},
    {"peft_type": "VERA", "r": 16},
    {"peft_type": "VERA", "r": 16, "bias": "vera_only"},
    {"peft_type": "WAVEFT", "n_frequency": 60},
    {"peft_type": "WAVEFT", "n_frequency": 60, "proportional_parameters": True},
    {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 5},
    {"peft_type": "MULTITASK_PROMPT_TUNING", "num_virtual_tokens": 5, "num_tasks": 3, "num_ranks": 2},
    {"peft_type": "CPT", "cpt_token_ids": [1, 2, 3]},
    {"peft_type": "P_TUNING", "num_virtual_tokens": 5},
    {"peft_type": "P_TUNING", "num_virtual_tokens": 5, "encoder_hidden_size": 24},
    {
        "peft_type": "P_TUNING",
        "num_virtual_tokens": 5,
        "encoder_reparameterization_type": "LSTM",
        "encoder_num_layers": 3,
    },
    {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 5},
    {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 5, "prefix_projection": True, "encoder_hidden_size": 48},
    {"peft_type": "CARTRIDGE", "num_virtual_tokens": 5},
    {"peft_type": "CARTRIDGE", "num_virtual_tokens": 5, "num_frozen_tokens": 0},
    {"peft_type": "ADAPTION_PROMPT", "adapter_len": 4, "adapter_layers": 1},
]
NO_TARGETS = "BEFT IA3 LN_TUNING TRAINABLE_TOKENS"


def test_every_method_counts() -> None:
    seen: set[str] = set()
    for case in OTHERS:
        aims = "target_modules" in case or case["peft_type"] in NO_TARGETS or "num_virtual_tokens" in case
        aimed = {} if aims or case["peft_type"] in ("CPT", "ADAPTION_PROMPT") else _T
        found = counted(shrunk("llama"), {"task_type": "CAUSAL_LM", **aimed, **case})
        assert sum(found.modules.values()) == found.trainable < found.total
        assert found.trainable or "none" in case.values(), case
        seen.add(case["peft_type"])
    assert seen == fusions().methods - REFUSED.keys() - {"LORA"}


def test_what_trains_with_the_dtype_of_the_weights() -> None:
    adapter = {"peft_type": "ADALORA", "total_step": 9, "target_modules": QV}
    wide, narrow = (counted(model_config(LLAMA).config, adapter, dtype).trainable for dtype in ("fp32", "bf16"))
    assert narrow - wide == 56  # the current rank of each module: upcast, it trains


def test_tensors_that_all_share_and_rows_of_a_tied_embedding() -> None:
    config = model_config(LLAMA).config
    bank = counted(config, {"peft_type": "VBLORA", "num_vectors": 20, "vector_length": 16, "target_modules": QV})
    assert bank.modules[""] == 20 * 16
    rows = counted(config, {"peft_type": "LORA", "r": 8, "target_modules": QV, "trainable_token_indices": [1, 5, 7]})
    assert rows.modules == {"q_proj": 28 * 8 * 6144, "v_proj": 28 * 8 * 4096, "embed_tokens": 3 * 3072}
    assert rows.total == BASE + rows.trainable


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ({"peft_type": "VERA", "target_modules": ["nowhere"]}, "No layers types compatible with VeRA"),
        ({"peft_type": "VERA", "target_modules": QV, "rr": 8}, "unexpected keyword argument 'rr'"),
        ({"peft_type": "C3A", "block_size": 7, "target_modules": QV}, "block"),
    ],
)
def test_what_peft_refuses_is_said_in_its_words(adapter: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=f"does not make {adapter['peft_type']}") as caught:
        counted(shrunk("llama"), adapter)
    assert words in str(caught.value)
