"""Reading quantization_config: methods, lists, and every mistake at once; quantisation that the user asks for."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.catalog.models import model_config, model_names
from vramcast.errors import Refused
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout
from vramcast.models.quant.loadtime import BITS, KINDS, experts_int8, load_time
from vramcast.models.quant.quantisation import Quantisation
from vramcast.models.quant.read import METHODS, REASONS, read_quantisation


def _layout(name: str) -> Layout:
    row = model_config(name)
    return build_layout(row.id, row.config, row.where)


def _read(**section: Any) -> Quantisation:
    found = read_quantisation({"torch_dtype": "bfloat16", "quantization_config": section}, "config.json")
    assert found is not None
    return found


def _packed(quantisation: Quantisation, layout: Layout) -> dict[str, str]:
    """parameter of the first layers → its format"""
    found: dict[str, str] = {}
    for block in layout.blocks:
        for name, weight in list(block.names())[: len(block.weights)]:
            form = quantisation.format_of(name, weight, block.module(weight))
            if form:
                found[name] = form.name
    return found


QWEN = _layout("Qwen/Qwen2.5-0.5B")
LINEARS = {
    f"model.layers.0.{name}.weight"
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
                 "mlp.up_proj", "mlp.down_proj")
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
CT_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}}
CT = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": CT_GROUP}}


@pytest.mark.parametrize(
    ("section", "kind", "label"),
    [
        (GPTQ, "gptq", "gptq int4 g128"),
        ({**GPTQ, "bits": 8, "group_size": -1}, "gptq", "gptq int8 channel"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, "awq", "awq int4 g64"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", "bitsandbytes int8 channel"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4", "bitsandbytes nf4"),
        ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "fp4", "bitsandbytes fp4 double"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", "fp8 128×128"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", "fp8 tensor"),
        ({"quant_method": "fbgemm_fp8"}, "fp8", "fbgemm_fp8 fp8 channel"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4", "modelopt nvfp4"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 3, "group_size": 64}},
          "skip_modules": ["lm_head"]}, "hqq", "hqq int3 g64"),
        ({"quant_method": "quanto", "weights": "int4"}, "quanto", "quanto int4 g128"),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}},
         "torchao", "torchao int8 channel"),
        (CT, "gptq", "compressed-tensors int4 g128"),
    ],
)  # fmt: skip
def test_dense(section: dict[str, Any], kind: str, label: str) -> None:
    """The linear layers are packed, and neither the tied embedding nor norms nor biases."""
    found = _read(**section)
    assert (found.kind, found.label) == (kind, label)
    assert set(_packed(found, QWEN)) == LINEARS


def test_no_section_is_no_quantisation() -> None:
    assert read_quantisation({}, "config.json") is None
    assert read_quantisation({"quantization_config": None}, "config.json") is None
    assert read_quantisation({"quantization_config": {}}, "config.json") is None


def test_it_may_stand_elsewhere() -> None:
    assert read_quantisation({"text_config": {"quantization_config": GPTQ}}, "x") is not None
    older = read_quantisation({"compression_config": {"quantization_config": CT, "sparsity_config": {}}}, "x")
    assert older is not None
    assert older.method == "compressed-tensors"


@pytest.mark.parametrize("name", [name for name in model_names() if model_config(name).params])
def test_every_section_of_the_catalogue_is_known(name: str) -> None:
    row = model_config(name)
    found = read_quantisation(row.config, row.where)
    if found is not None:
        layout = build_layout(row.id, row.config, row.where)
        found.check(layout)
        assert _packed(found, layout)


def test_gpt_oss_packs_experts_and_keeps_their_biases() -> None:
    row = model_config("openai/gpt-oss-20b")
    found = read_quantisation(row.config, row.where)
    assert found is not None
    packed = _packed(found, build_layout(row.id, row.config, row.where))
    assert {name.rpartition(".")[2] for name in packed} == {"gate_up_proj", "down_proj"}
    assert set(packed.values()) == {"mxfp4"}


def test_kimi_packs_routed_experts_alone() -> None:
    """Its lists name attention, shared experts and dense layers; the section is the language model's."""
    row = model_config("moonshotai/Kimi-K2.5")
    found = read_quantisation(row.config, row.where)
    assert found is not None
    packed = _packed(found, build_layout(row.id, row.config, row.where))
    assert {name.partition("mlp.")[2] for name in packed} == {"experts.gate_up_proj", "experts.down_proj"}


def test_deepseek_leaves_some_of_its_scorer_in_bf16() -> None:
    row = model_config("deepseek-ai/DeepSeek-V3.2")
    found = read_quantisation(row.config, row.where)
    assert found is not None
    packed = _packed(found, build_layout(row.id, row.config, row.where))
    assert "model.layers.0.self_attn.indexer.wk.weight" in packed
    assert "model.layers.0.self_attn.indexer.weights_proj.weight" not in packed
    assert not any("mlp.gate.weight" in name or "lm_head" in name for name in packed)


def test_deepseek_v4_packs_its_experts_in_four_bits() -> None:
    row = model_config("deepseek-ai/DeepSeek-V4-Flash")
    found = read_quantisation(row.config, row.where)
    assert found is not None
    packed = _packed(found, build_layout(row.id, row.config, row.where))
    kinds = {name.partition("mlp.experts.")[1]: form for name, form in packed.items()}
    assert kinds == {"": "fp8 128×128", "mlp.experts.": "mxfp4"}


def test_lists_of_each_method() -> None:
    small = {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["self_attn"]}
    assert len(_packed(_read(**small), QWEN)) == 7  # "self_attn" is no beginning and no end of a module's name
    small["modules_to_not_convert"] = [".*self_attn"]
    assert len(_packed(_read(**small), QWEN)) == 3
    assert len(_packed(_read(**{**CT, "ignore": ["re:.*self_attn.*"]}), QWEN)) == 3
    optimizer = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["*self_attn*", "lm_head"]}
    assert len(_packed(_read(**optimizer), QWEN)) == 3
    dynamic = {"-:.*self_attn.*": {}, "+:.*down_proj": {"bits": 8, "group_size": 32}}
    packed = _packed(_read(**{**GPTQ, "dynamic": dynamic}), QWEN)
    assert packed["model.layers.0.mlp.down_proj.weight"] == "int8 g32"
    assert packed["model.layers.0.mlp.up_proj.weight"] == "int4 g128"
    assert len(packed) == 3
    only = {**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj"], ["self_attn.o_proj"]]}
    assert len(_packed(_read(**only), QWEN)) == 2


def test_the_head() -> None:
    """Kept unless the method's list is there and does not name it (bitsandbytes), or the config says so (GPTQ)."""
    big = _layout("Qwen/Qwen2.5-7B")
    head = "lm_head.weight"
    assert head not in _packed(_read(load_in_8bit=True), big)
    assert head in _packed(_read(load_in_8bit=True, llm_int8_skip_modules=["visual"]), big)
    assert head not in _packed(_read(load_in_8bit=True, llm_int8_skip_modules=["lm_head"]), big)
    assert head in _packed(_read(**{**GPTQ, "lm_head": True}), big)
    assert head not in _packed(_read(**{**CT, "ignore": ["lm_head"]}), big)
    assert head in _packed(_read(**CT), big)


def test_two_groups_of_compressed_tensors() -> None:
    eight = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {"a": {"targets": ["re:.*self_attn.*"], "weights": eight}, "b": CT_GROUP}
    found = _read(quant_method="compressed-tensors", format="mixed-precision", config_groups=groups)
    packed = _packed(found, QWEN)
    assert packed["model.layers.0.self_attn.q_proj.weight"] == "fp8 channel"
    assert packed["model.layers.0.mlp.up_proj.weight"] == "int4 g128"
    assert found.label == "compressed-tensors fp8 channel + int4 g128"


def _refusal(section: dict[str, Any]) -> str:
    with pytest.raises(Refused) as caught:
        read_quantisation({"quantization_config": section}, "model/config.json")
    return str(caught.value)


def test_an_unknown_method() -> None:
    text = _refusal({"quant_method": "gptqq"})
    assert "error: quantisation method 'gptqq' is not known" in text
    assert "from     model/config.json" in text
    assert "near     gptq" in text
    assert "awq" in text.partition("allowed")[2]


@pytest.mark.parametrize("method", REASONS)
def test_methods_that_are_refused_by_name(method: str) -> None:
    text = _refusal({"quant_method": method})
    assert method in text
    assert REASONS[method] in text


def test_all_mistakes_at_once() -> None:
    text = _refusal({"quant_method": "gptq", "bits": 5, "group_size": 0})
    assert "quantization_config.bits = 5 is not known" in text
    assert "allowed  2, 3, 4, 8" in text
    assert "quantization_config.group_size = 0 is no group size" in text
    text = _refusal({"quant_method": "gptq"})
    assert "quantization_config.bits is missing" in text
    assert "quantization_config.group_size is missing" in text


@pytest.mark.parametrize(
    ("section", "fact"),
    [
        ({}, "names no quant_method"),
        ({"x": 1}, "quantization_config names no quant_method"),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        ({**CT, "format": "pack-quantised"}, "quantization_config.format = 'pack-quantised' is not known"),
        ({**CT, "format": "marlin-24"}, "2:4 sparse weights are not modelled"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two whole numbers"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED"}, "quant_algo = 'MIXED' is not known"),
        ({"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf5"}, "bnb_4bit_quant_type = 'nf5' is not known"),
        ({"quant_method": "quanto", "weights": "int3"}, "weights = 'int3' is not known"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 7}}}, "nbits = 7 is not known"),
        ({"quant_method": "torchao", "quant_type": "int3_weight_only"}, "quant_type = 'int3_weight_only' is not known"),
    ],
)
def test_wrong_sections(section: dict[str, Any], fact: str) -> None:
    if section:
        assert fact in _refusal(section)


def test_a_section_that_is_no_object() -> None:
    with pytest.raises(Refused, match="quantization_config must be an object, not 'gptq'"):
        read_quantisation({"quantization_config": "gptq"}, "config.json")


def test_a_group_that_does_not_divide() -> None:
    """Qwen2.5-0.5B: 896 = 7 × 128 and 4864 = 38 × 128 inputs. One layer is named for each width."""
    found = _read(**{**GPTQ, "group_size": 512})
    with pytest.raises(Refused) as caught:
        found.check(QWEN, "config.json")
    text = str(caught.value)
    assert "group size 512 does not divide the 896 inputs of model.layers.0.self_attn.q_proj.weight" in text
    assert "group size 512 does not divide the 4864 inputs of model.layers.0.mlp.down_proj.weight" in text
    assert "allowed  16, 32, 64, 128" in text
    _read(**GPTQ).check(QWEN)


def test_a_layer_too_narrow_for_the_words_stays_as_it_is() -> None:
    """AWQ packs eight outputs in a word: a gate with a single output cannot be packed."""
    layout = _layout("Qwen/Qwen1.5-MoE-A2.7B")
    found = load_time("awq")
    assert found is not None
    packed = _packed(found, layout)
    assert not any("shared_expert_gate" in name for name in packed)
    assert any("shared_expert.up_proj" in name for name in packed)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_kinds_while_loading(kind: str) -> None:
    found = load_time(kind)
    assert found is not None
    assert found.kind == kind
    assert set(_packed(found, QWEN)) == (set() if kind == "mxfp4" else LINEARS)
    for bits in BITS[kind]:
        assert load_time(kind, bits=bits) is not None


def test_loading_experts() -> None:
    """One tensor for all experts is no linear layer: transformers 5 leaves it, vLLM packs it."""
    layout = _layout("Qwen/Qwen3-30B-A3B")
    for experts, expected in ((None, 0), (True, 2)):
        found = load_time("nf4", experts=experts)
        assert found is not None
        assert sum("experts" in name for name in _packed(found, layout)) == expected
    assert {name.rpartition(".")[2] for name in _packed(experts_int8(), layout)} == {"gate_up_proj", "down_proj"}


def test_bitsandbytes_leaves_falcon() -> None:
    layout = _layout("tiiuae/falcon-7b")
    for kind, expected in (("nf4", 0), ("hqq", 4)):
        found = load_time(kind, model_type="falcon")
        assert found is not None
        assert len(_packed(found, layout)) == expected


def test_what_a_kind_does_not_have() -> None:
    assert load_time("none") is None
    with pytest.raises(Refused, match=r"quant.kind = 'nf5' is not known\n  near     nf4"):
        load_time("nf5")
    with pytest.raises(Refused) as caught:
        load_time("nf4", storage="uint9", bits=3, group=32, weights="int5")
    text = str(caught.value)
    assert "quant.storage = 'uint9' is not known" in text
    assert "quant.bits = 3: nf4 has no such weights" in text
    assert "quant.group = 32: the groups of nf4 are fixed" in text
    assert "torchao's 'int5' is not known" in text


def test_every_method_has_a_reader_or_a_reason() -> None:
    assert not set(METHODS) & set(REASONS)
