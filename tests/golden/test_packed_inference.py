"""Packed weights in inference, worked by hand: Qwen2.5-7B with Transformers in every kind, and in vLLM in fp8.

Packed are the seven linear layers of a block. Embedding, head, norms and biases stay in 16 bits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.golden.qwen import BIASES, EMBEDDING, FFN, HIDDEN, KV, LAYERS, NORMS, PARAMS, QUERY
from tests.group_jobs import TRL, ask, terms_of
from tests.random_jobs import said

from vramcast.catalog.models import model_config
from vramcast.estimate import forecast
from vramcast.memory.loaded import loaded_bytes
from vramcast.types.result import PhaseBytes
from vramcast.validation.serving import served

JOB: dict[str, Any] = {
    "algorithm": "inference", "framework": "transformers==5.24.0", "model": "Qwen/Qwen2.5-7B", "gpu": "a100-sxm-80gb",
    "weights_dtype": "bf16", "micro_batch": 8, "seq_len": 4096, "prompt_len": 2000, "attention": "flash",
}  # fmt: skip

SHAPES = [(QUERY, HIDDEN), (KV, HIDDEN), (KV, HIDDEN), (HIDDEN, QUERY), (FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN)]
"""outputs and inputs of q, k, v, o, gate, up and down"""
PACKED = sum(outputs * inputs for outputs, inputs in SHAPES)
assert PACKED == 233_046_016
REST = 2 * EMBEDDING + LAYERS * (BIASES + NORMS) + HIDDEN
"""embedding, head, biases and norms: 1,090,328,064"""
assert REST + LAYERS * PACKED == PARAMS

OUTPUTS = sum(outputs for outputs, _ in SHAPES)
INPUTS = sum(inputs for _, inputs in SHAPES)
assert (OUTPUTS, INPUTS) == (49_664, 40_448)
MIXED_BLOCKS = 28 * 28 + 2 * 4 * 28 + 28 * 28 + 3 * 148 * 28
"""blocks of 128 x 128 in a layer: 3584 are 28 of them, 512 are 4 and 18,944 are 148"""

BYTES = {
    # half a byte a weight, an fp32 absmax for 64, and 16 fp32 values of the code
    "nf4": PACKED // 2 + PACKED // 64 * 4 + 7 * 64,
    "fp4": PACKED // 2 + PACKED // 64 * 4 + 7 * 64,
    # absmax in a byte with an fp32 scale for 256 of them; codes of 16 and of 256 values and an offset
    "nf4 double": PACKED // 2 + PACKED // 64 + PACKED // 16_384 * 4 + 7 * (64 + 1024 + 4),
    # a byte, and an fp32 scale for each output
    "int8": PACKED + 4 * OUTPUTS,
    # a byte, and an fp32 scale for the tensor, or for a block of 128 x 128
    "fp8": PACKED + 7 * 4,
    "fp8_block": PACKED + 4 * MIXED_BLOCKS,
    # half a byte; for 128 weights an fp16 scale and a zero point of half a byte; GPTQ has an int32 index of each input
    "gptq": PACKED // 2 + PACKED // 128 * 2 + PACKED // 128 // 2 + 4 * INPUTS,
    "awq": PACKED // 2 + PACKED // 128 * 2 + PACKED // 128 // 2,
    # half a byte; an fp16 scale and zero point for 64
    "hqq": PACKED // 2 + PACKED // 64 * 4,
    # half a byte, a byte for 16 and an fp32 scale for the tensor
    "nvfp4": PACKED // 2 + PACKED // 16 + 7 * 4,
}
"""of the linear layers of one block"""


def generating(instant: str = "decode", **more: object) -> dict[str, int]:
    """Term -> bytes."""
    values = {**JOB, **{path.replace("__", "."): value for path, value in more.items()}}
    return terms_of(_phase(values, instant), "policy")


def _phase(values: dict[str, Any], instant: str) -> PhaseBytes:
    return next(one for one in forecast(said(values)).groups[0].phases if one.instant == instant)


@pytest.mark.parametrize("kind", BYTES)
def test_weights(kind: str) -> None:
    name, _, double = kind.partition(" ")
    found = generating(quant__kind=name, **({"quant__double": True} if double else {}))
    assert found["weights"] == 2 * REST + LAYERS * BYTES[kind]


def test_figures_of_the_weights() -> None:
    whole = {kind: 2 * REST + LAYERS * size for kind, size in BYTES.items()}
    assert whole["nf4"] == 5_851_143_424
    assert whole["nf4 double"] == 5_547_065_104
    assert whole["int8"] == 8_711_506_944
    assert whole["fp8"] == 8_705_945_360
    assert whole["gptq"] == 5_575_277_568
    assert whole["awq"] == 5_570_747_392


@pytest.mark.parametrize(("bits", "group"), [(8, 128), (4, 32), (2, 64), (3, 256)])
def test_gptq_of_other_bits_and_groups(bits: int, group: int) -> None:
    packed = PACKED * bits // 8 + PACKED // group * 2 + PACKED // group * bits // 8 + 4 * INPUTS
    found = generating(quant__kind="gptq", quant__bits=bits, quant__group=group)
    assert found["weights"] == 2 * REST + LAYERS * packed


def test_what_is_not_packed_has_a_dtype_of_its_own() -> None:
    assert generating(quant__kind="nf4", weights_dtype="fp32")["weights"] == 4 * REST + LAYERS * BYTES["nf4"]
    rest = generating(quant__kind="nf4", quant__rest_dtype="fp32")["weights"]
    assert rest == 4 * REST + LAYERS * BYTES["nf4"]


# --- the working memory of a decode step ------------------------------------------------------------------------------

H, F = 8 * HIDDEN * 2, 8 * FFN * 2
"""a hidden state of 8 tokens, and an MLP product: 57,344 and 303,104 bytes"""
UP = FFN * HIDDEN * 2
"""gate or up unpacked to 16 bits: 135,790,592"""
STANDING = 4 * H + F
"""while up_proj runs: the embedding's output, the block's input, the residual stream, x of the MLP; SiLU(gate)"""


def test_a_step_in_4_bits_unpacks_the_largest_layer() -> None:
    """More than a hundred times what the same step needs in 16 bits."""
    assert generating()["activations.block"] == STANDING + F + F == 1_138_688  # up and its product with SiLU(gate)
    assert generating(quant__kind="nf4")["activations.block"] == STANDING + UP + F == 136_626_176


def test_double_quantisation_unpacks_scales_beside_it() -> None:
    scales = FFN * HIDDEN // 64 * 4  # in fp32, and a second copy when their offset is added
    found = generating(quant__kind="nf4", quant__double=True)["activations.block"]
    assert found == STANDING + 2 * scales + UP + F == 145_113_088


def test_a_step_in_int8_sums_in_32_bits() -> None:
    row = 8 * 4 + 8 * HIDDEN  # scales of 8 rows, and codes of a byte
    assert generating(quant__kind="int8")["activations.block"] == STANDING + row + 2 * F + F + F == 1_773_600


@pytest.mark.parametrize("kind", ["fp8", "fp8_block", "gptq", "awq"])
def test_kernels_that_read_packed_weights_need_no_more_than_plain_ones(kind: str) -> None:
    assert generating(quant__kind=kind)["activations.block"] == generating()["activations.block"]


def test_awq_unpacks_for_long_prompts_only() -> None:
    """8 prompts of 127 tokens are fewer than 1024 rows. From there on the whole weight is there beside the result."""
    short = {"prompt_len": 127, "seq_len": 200}
    assert (
        generating("prefill", **short)["activations.block"]
        == (generating("prefill", quant__kind="awq", **short)["activations.block"])
    )
    hidden, product = 1024 * HIDDEN * 2, 1024 * FFN * 2
    found = generating("prefill", quant__kind="awq", prompt_len=128, seq_len=200)["activations.block"]
    assert found == 4 * hidden + product + UP + product


# --- what else comes with packed checkpoints --------------------------------------------------------------------------


def test_exllama_keeps_room_for_the_largest_layer() -> None:
    """Transformers 4 with auto-gptq: gate_proj in fp16, and a row of the widest layer, from loading on."""
    old = {"framework": "transformers==4.57.0", "quant__kind": "gptq"}
    room = 2 * (FFN * HIDDEN + FFN)
    assert generating("built", **old)["quant.buffers"] == generating(**old)["quant.buffers"] == room
    for other in ({"quant__kind": "awq"}, {"quant__bits": 8}, {"framework": "transformers==5.24.0"}):
        assert "quant.buffers" not in generating(**{**old, **other})


def test_an_awq_checkpoint_of_a_tied_model_loads_its_head_too() -> None:
    """Qwen2.5-0.5B: 151,936 x 896, once as the embedding; the file has it twice, and loading ends with one."""
    tied = {"model": "Qwen/Qwen2.5-0.5B", "quant__kind": "awq"}
    assert generating("built", **tied)["weights.untied"] == 151_936 * 896 * 2
    assert "weights.untied" not in generating("decode", **tied)
    assert "weights.untied" not in generating("built", **{**tied, "quant__kind": "gptq"})
    assert "weights.untied" not in generating("built", quant__kind="awq")  # a head of its own


# --- vLLM -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_fp8_in_the_engine(ranks: int) -> None:
    """Every linear layer of the blocks: a byte a weight and an fp32 scale. Vocabulary (a multiple of 64 already), key
    heads, biases and weights are cut over the ranks; norms and the table of 131,072 positions are not."""
    answer = ask({**TRL, "engine.tp": ranks, "engine.quant": "fp8"})
    (found,) = {terms_of(phase).get("engine.weights", 0) for phase in answer.groups[0].phases} - {0}
    plain = 2 * EMBEDDING // ranks + LAYERS * (BIASES // ranks + NORMS) + HIDDEN + 131_072 * 128
    held = served({"model": TRL["model"], "engine.kind": "vllm", "quant.kind": "fp8", "engine.tp": ranks})
    assert sum(held.tensors()) == 2 * plain + LAYERS * (PACKED // ranks + 7 * 4)
    assert found == loaded_bytes(held)


def test_the_trainer_keeps_16_bits_beside_it() -> None:
    plain, packed = (ask({**TRL, "engine.quant": quant}) for quant in ("none", "fp8"))
    policies = [{terms_of(phase, "policy").get("weights") for phase in one.groups[0].phases} for one in (plain, packed)]
    assert policies[0] == policies[1]


# --- checkpoints that are packed already ------------------------------------------------------------------------------

SECTIONS: dict[str, dict[str, Any]] = {
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4 double": {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8_block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
}  # fmt: skip


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_packed_checkpoint_is_what_the_path_of_its_kind_asks_for(kind: str, tmp_path: Path) -> None:
    """Every term at every instant, whether the config.json says how it is packed or the job does."""
    file = tmp_path / "config.json"
    section = {"quantization_config": SECTIONS[kind]}
    file.write_text(json.dumps(model_config(JOB["model"]).config | section), encoding="utf-8")
    name, _, double = kind.partition(" ")
    asked = {"quant.kind": name, **({"quant.double": True} if double else {})}
    for instant in ("built", "prefill", "decode"):
        found = terms_of(_phase({**JOB, "model": str(file)}, instant), "policy")
        assert found == terms_of(_phase({**JOB, **asked}, instant), "policy")


def test_a_checkpoint_may_keep_layers_in_16_bits(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    section = {"quantization_config": {**SECTIONS["awq"], "modules_to_not_convert": ["down_proj"]}}
    file.write_text(json.dumps(model_config(JOB["model"]).config | section), encoding="utf-8")
    down = HIDDEN * FFN
    packed = BYTES["awq"] - (down // 2 + down // 128 * 2 + down // 128 // 2)
    assert generating(model=str(file))["weights"] == 2 * (REST + LAYERS * down) + LAYERS * packed
