"""The sections of each method, except compressed-tensors: settings → formats and the modules they name."""

from __future__ import annotations

from typing import Any, cast

from vramcast.models.quant import formats
from vramcast.models.quant.format import Format
from vramcast.models.quant.loadtime import MXFP4_PADDING, STORAGE
from vramcast.models.quant.loadtime import experts_int8 as _experts_int8
from vramcast.models.quant.quantisation import Quantisation, Rule
from vramcast.models.quant.section import Section

_BF16_IN_FP8 = (
    "indexer.weights_proj", "indexer.scorer.weights_proj", "compressor.kv_proj", "compressor.gate_proj",
    "compressor.indexer.kv_proj", "compressor.indexer.gate_proj",
)  # fmt: skip
"""what DeepSeek's fp8 checkpoints leave in bf16 without naming it: transformers 5.24 `_keep_in_fp32_modules` of
deepseek_v32, deepseek_v4 and glm_moe_dsa"""


def dtype_bytes(config: dict[str, Any]) -> int:
    """Bytes of the model's dtype."""
    nested = config.get("text_config")
    places = [config, cast("dict[str, Any]", nested)] if isinstance(nested, dict) else [config]
    given = [str(place.get(key)) for place in places for key in ("torch_dtype", "dtype") if place.get(key)]
    return 4 if given and given[0].removeprefix("torch.") == "float32" else 2


def gptq(section: Section, config: dict[str, Any]) -> Quantisation:
    """GPTQ: the linear layers of the decoder; GPTQModel's `dynamic` changes or leaves out layers by pattern."""
    form = _gptq_format(section, section)
    rules: list[Rule] = []
    dynamic = section.sub("dynamic")
    for pattern in dynamic.config if dynamic else ():
        names = (f"re:{pattern.removeprefix('-:').removeprefix('+:')}",)
        if pattern.startswith("-:"):
            rules.append(Rule((), names, "exact"))
        elif dynamic and (changed := dynamic.sub(pattern)):
            rules.append(Rule((_gptq_format(changed, section),), names, "exact"))
    only = section.names("modules_in_block_to_quantize")
    rules.append(Rule((form,), only or ()))
    return _made(section, "gptq", "gptq", form, rules, head=section.flag("lm_head", False), vision=False,
                 blocks_only=not section.flag("lm_head", False))  # fmt: skip


def _gptq_format(section: Section, default: Section) -> Format:
    def either(name: str) -> Section:
        return section if name in section.config else default

    bits = either("bits").number("bits", None, (2, 3, 4, 8))
    group = either("group_size").group()
    return formats.gptq(bits, group, either("sym").flag("sym", True), either("desc_act").flag("desc_act", False))


def awq(section: Section, config: dict[str, Any]) -> Quantisation:
    """AWQ: the linear layers of the language model that are not listed."""
    bits = section.number("bits" if "bits" in section.config else "w_bit", None, (4,))
    field = "group_size" if "group_size" in section.config else "q_group_size"
    form = formats.awq(bits, section.group(field), section.flag("zero_point", True))
    if str(section.config.get("version") or "gemm").lower() not in ("gemm", "gemv", "gemv_fast", "exllama", "marlin"):
        section.word("version", ("gemm", "gemv", "exllama", "marlin"))
    return _made(section, "awq", "awq", form, [*_kept(section, "modules_to_not_convert"), Rule((form,))],
                 vision=False, blocks_only=True)  # fmt: skip


def bitsandbytes(section: Section, config: dict[str, Any]) -> Quantisation:
    """8 or 4 bits. A list of skipped modules replaces the default one, which is the head."""
    if section.flag("load_in_8bit", False):
        form, kind = formats.INT8_ROWS, "int8"
    else:
        kind = section.word("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
        double = section.flag("bnb_4bit_use_double_quant", False)
        form = formats.four_bit(kind, double, STORAGE[section.word("bnb_4bit_quant_storage", STORAGE, "uint8")])
    skipped = section.names("llm_int8_skip_modules")
    rules = [*([Rule((), skipped)] if skipped else []), Rule((form,))]
    return _made(section, "bitsandbytes", kind, form, rules, head=skipped is not None, routers=True)


def fp8(section: Section, config: dict[str, Any]) -> Quantisation:
    """e4m3 in blocks (DeepSeek) or with a scale for the tensor (AutoFP8); DeepSeek V4 keeps its experts in 4 bits."""
    block = _block(section)
    # V3.2 says ue8m0 and still has fp32 in its files, whose values are powers of two; transformers makes bytes of them.
    powers = section.config.get("scale_fmt") == "ue8m0"
    scale_bytes = 1 if powers and _fp4_experts(config) else 4
    static = section.config.get("activation_scheme") == "static"
    form = formats.fp8_linear(block, scale_bytes, static, 1 if powers else 4)
    kept = _kept(section, "modules_to_not_convert", "ignored_layers")
    experts = [Rule((formats.MXFP4,), ("experts",))] if _fp4_experts(config) else []
    rules = [Rule((), _BF16_IN_FP8), *kept, *experts, Rule((form,))]
    return _made(section, "fp8", "fp8_block" if block else "fp8", form, rules)


def _fp4_experts(config: dict[str, Any]) -> bool:
    return config.get("expert_dtype") == "fp4" or config.get("model_type") == "deepseek_v4"


def _block(section: Section) -> tuple[int, int] | None:
    value: Any = section.config.get("weight_block_size")
    if value is None:
        return None
    if isinstance(value, list):
        sizes = cast("list[object]", value)
        if len(sizes) == 2 and all(isinstance(one, int) and one > 0 for one in sizes):
            return cast("int", sizes[0]), cast("int", sizes[1])
    section.wrong(f"{section.place}.weight_block_size must be two whole numbers above 0, not {value!r}")
    return 128, 128


def fbgemm(section: Section, config: dict[str, Any]) -> Quantisation:
    """Meta's fp8: a scale for each row."""
    rules = [*_kept(section, "modules_to_not_convert"), Rule((formats.FBGEMM,))]
    return _made(section, "fbgemm_fp8", "fp8", formats.FBGEMM, rules)


def mxfp4(section: Section, config: dict[str, Any]) -> Quantisation:
    """GPT-OSS: the experts alone, their biases as they are."""
    rules = [*_kept(section, "modules_to_not_convert"), Rule((formats.MXFP4,))]
    return _made(section, "mxfp4", "mxfp4", formats.MXFP4, rules, linears=False, padding=MXFP4_PADDING)


def modelopt(section: Section, config: dict[str, Any]) -> Quantisation:
    """NVIDIA Model Optimizer: FP8 with one scale, or NVFP4."""
    algorithm = section.word("quant_algo", ("NVFP4", "FP8"))
    form = formats.nvfp4(static=True) if algorithm == "NVFP4" else formats.fp8_linear(None, static=True)
    excluded = section.names("exclude_modules", "ignore")
    rules = [*([Rule((), excluded, "wildcard")] if excluded else []), Rule((form,))]
    return _made(
        section, "modelopt", "nvfp4" if algorithm == "NVFP4" else "fp8", form, rules, head=excluded is not None
    )


def hqq(section: Section, config: dict[str, Any]) -> Quantisation:
    """HQQ: one setting for all layers, or one for each name that has one."""
    settings = section.sub("quant_config") or section
    skipped = section.names("skip_modules")
    rules = [Rule((), skipped)] if skipped else []
    by_name = [
        (name, one) for name, one in settings.subs() if name not in ("weight_quant_params", "scale_quant_params")
    ]
    named = [(name, one) for name, one in by_name if one.sub("weight_quant_params")]
    if named:
        rules += [Rule((_hqq_format(one.sub("weight_quant_params") or one),), (name,)) for name, one in named]
        form = rules[-1].formats[0]
    else:
        form = _hqq_format(settings.sub("weight_quant_params") or settings)
        rules.append(Rule((form,)))
    return _made(section, "hqq", "hqq", form, rules, head=skipped is not None, routers=True, strict=False)


def _hqq_format(section: Section) -> Format:
    bits = section.number("nbits", None, (8, 4, 3, 2, 1))
    return formats.hqq(bits, section.group(otherwise=64), section.number("axis", 1, (0, 1)))


def torchao(section: Section, config: dict[str, Any]) -> Quantisation:
    """torchao's weight-only and dynamic settings, by the name of their class."""
    found = section.sub("quant_type")
    inner = (found.sub("default") or found) if found else section
    data = inner.sub("_data") or inner
    weights = _TORCHAO[inner.word("_type", _TORCHAO)] if found else _OLD[section.word("quant_type", _OLD)]
    packing = str(data.config.get("int4_packing_format") or "plain").rpartition(".")[2].lower()
    if weights == "int4" and packing not in ("plain", "tile_packed_to_4d"):
        data.word("int4_packing_format", ("plain", "tile_packed_to_4d"))
    form = formats.torchao(weights, data.group(otherwise=128), dtype_bytes(config), packing == "tile_packed_to_4d")
    rules = [*_kept(section, "modules_to_not_convert"), Rule((form,))]
    head = section.names("modules_to_not_convert") is not None
    return _made(section, "torchao", "torchao", form, rules, head=head, routers=True, strict=False)


_TORCHAO = {
    "Int4WeightOnlyConfig": "int4",
    "Int8WeightOnlyConfig": "int8",
    "Float8WeightOnlyConfig": "float8",
    "Int8DynamicActivationInt8WeightConfig": "int8",
    "Float8DynamicActivationFloat8WeightConfig": "float8",
}
_OLD = {"int4_weight_only": "int4", "int8_weight_only": "int8", "int8_dynamic_activation_int8_weight": "int8"}


def quanto(section: Section, config: dict[str, Any]) -> Quantisation:
    """optimum-quanto, with groups that get smaller where 128 does not divide."""
    weights = section.word("weights", ("int8", "float8", "int4", "int2"))
    bytes_ = dtype_bytes(config)
    made = tuple(formats.quanto(weights, bytes_, group) for group in (128, 96, 64, 32))
    options = made[:1] if weights in ("int8", "float8") else made
    kept = section.names("modules_to_not_convert")
    rules = [*([Rule((), kept)] if kept else []), Rule(options)]
    return _made(section, "quanto", "quanto", options[0], rules, head=kept is not None, routers=True, strict=False)


def experts_int8(section: Section, config: dict[str, Any]) -> Quantisation:
    """vLLM quantises the experts while loading."""
    return _experts_int8()


def _kept(section: Section, *fields: str) -> list[Rule]:
    """The modules that a list keeps in the model's dtype."""
    names = section.names(*fields)
    return [Rule((), names)] if names else []


def _made(section: Section, method: str, kind: str, form: Format, rules: list[Rule], **modes: Any) -> Quantisation:
    label = form.name if form.name.startswith(method) else f"{method} {form.name}"
    return Quantisation(method=method, kind=kind, label=label, rules=tuple(rules), source=section.source, **modes)
