"""Our adapters beside PEFT's own, built on models of transformers: names, shapes, dtypes, trainable and total.

`PYTHONPATH=src python -m tests.models.peft_counts` prints the figures, `… facts` writes methods.jsonl from the
installed PEFT (both need the extra `trace`), `… facts --check` says whether the file is up to date.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import re
import sys
import types
import typing
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from tests.models.classes import smallest_of_each_type

from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.models.adapters import AdapterCount, Tensor, count, dtype_of, read_adapter
from vramcast.models.adapters.methods import __file__ as methods_file
from vramcast.models.adapters.modules import tree
from vramcast.models.counted import class_types
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout
from vramcast.models.types import family_of

FILE = Path(methods_file).with_name("methods.jsonl")
UNREGISTERED = ("shira_indices", "indices", "waveft_indices")
"""tensors that PEFT keeps in plain dicts: no buffers of the module"""
SHARED = "vera_A vera_B pvera_A pvera_B randlora_A randlora_B vblora_vector_bank unilora_theta_d tinylora_v".split()
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int64": "int64", "int32": "int32"}


# ---------------------------------------------------------------- what PEFT says about its methods


def _kinds(hint: Any) -> set[str]:
    """Kinds of JSON value that an annotation allows."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return {"any"}
    if origin in (typing.Union, types.UnionType):
        return set().union(*(_kinds(one) for one in typing.get_args(hint)))
    if origin is typing.Literal:
        return set().union(*(_kinds(type(one)) for one in typing.get_args(hint)))
    hint = origin or hint
    table = ((type(None), {"null"}), (bool, {"bool"}), (int, {"int"}), (float, {"float", "int"}), (str, {"str"}),
             (enum.Enum, {"str"}), ((list, set, tuple), {"list"}), (dict, {"dict"}))  # fmt: skip
    for kind, names in table:
        if isinstance(hint, type) and issubclass(hint, kind):
            return set(names)
    return {"dict"} if dataclasses.is_dataclass(hint) else {"any"}


def _default(field: dataclasses.Field[Any]) -> Any:
    value = field.default if field.default is not dataclasses.MISSING else None
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if dataclasses.is_dataclass(value):
        return {}
    return value.value if isinstance(value, enum.Enum) else value


def facts() -> str:
    """The text of methods.jsonl from the installed PEFT: fields, defaults, and targets of the types we have."""
    import peft
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
    from peft.utils import constants
    from peft.utils import transformers_weight_conversion as conversion
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    known = {*family_of(), *class_types()}
    schemes = conversion._MOE_TARGET_MODULE_MAPPING
    pattern = conversion._MODEL_TO_CONVERSION_PATTERN
    packed = {name: pattern[name] for name in sorted(known) if pattern.get(name) in schemes}
    first = {
        "version": peft.__version__,
        "source": "peft utils/transformers_weight_conversion.py",
        "types": {name: scheme for name, scheme in packed.items() if get_checkpoint_conversion_mapping(name)},
        "renamed": schemes,
        "fused": conversion._MOE_FUSED_TARGETS,
    }
    lines = [json.dumps(first)]
    for method, config in sorted(PEFT_TYPE_TO_CONFIG_MAPPING.items(), key=lambda pair: pair[0].value):
        hints = typing.get_type_hints(config)
        fields = {
            field.name: [_default(field), "|".join(sorted(_kinds(hints[field.name])))]
            for field in dataclasses.fields(config)
            if field.init
        }
        stem = method.value.replace("_", "") if method.value == "LN_TUNING" else method.value
        targets = getattr(constants, f"TRANSFORMERS_MODELS_TO_{stem}_TARGET_MODULES_MAPPING", {})
        line = {
            "method": method.value,
            "version": peft.__version__,
            "config": f"{config.__module__}.{config.__name__}",
            "fields": fields,
            "targets": {name: targets[name] for name in sorted(targets) if name in known},
        }
        if method.value == "IA3":
            inner = constants.TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING
            line["feedforward"] = {name: inner[name] for name in sorted(inner) if name in known}
        lines.append(json.dumps(line))
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- what class stands behind a name


def kinds_that_differ() -> tuple[int, list[str]]:
    """(types compared, modules whose class we take for another) over the smallest model of every type."""
    import torch
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    classes = (("linear", nn.Linear), ("conv1d", Conv1D), ("embedding", nn.Embedding),
               ("convolution", (nn.Conv1d, nn.Conv2d, nn.Conv3d)), ("attention", nn.MultiheadAttention))  # fmt: skip
    compared, found = 0, list[str]()
    for row in smallest_of_each_type():
        try:
            with torch.device("meta"):
                model = transformers_model(row.config)
            ours = tree(build_layout(row.id, row.config, row.where))
        except (LookupError, ImportError, TypeError, Refused):
            continue
        compared += 1
        for name, module in model.named_modules():
            if not name or not list(module.parameters(recurse=False)):
                continue
            theirs = next((kind for kind, one in classes if isinstance(module, one)), "other")
            mine = ours.modules.get(name)
            same = {"norm": "other"}.get(mine.kind, mine.kind) if mine else "missing"
            groups = theirs == "convolution" and mine and mine.groups != module.groups
            if same != theirs or groups:
                found.append(f"{row.id} {name}: theirs {type(module).__name__}, ours {same}")
        head, first = model.get_output_embeddings(), model.get_input_embeddings()
        named = {id(module): name for name, module in model.named_modules()}
        if (named.get(id(head), ""), named[id(first)]) != (ours.head, ours.embedding):
            found.append(f"{row.id}: ends {ours.embedding} and {ours.head or 'none'}")
    return compared, found


def transformers_model(config: dict[str, Any], **more: Any) -> Any:
    """The class of transformers that a configuration names, or the one for its type.

    Raises:
        LookupError: transformers has none.
    """
    import transformers

    if config["model_type"] not in transformers.CONFIG_MAPPING:
        raise LookupError(config["model_type"])
    settings = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    named = getattr(transformers, (config.get("architectures") or [""])[0], None)
    if named and not more:
        return named(settings)
    picture = type(settings) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    auto = transformers.AutoModelForImageTextToText if picture else transformers.AutoModelForCausalLM
    return auto.from_config(settings, **more)


# ---------------------------------------------------------------- PEFT's model beside ours


class Compared(NamedTuple):
    """One model under one configuration; `differ`: what is not the same, in words."""

    model: str
    config: dict[str, Any]
    differ: list[str]
    ours: str = ""
    """why we refuse"""
    theirs: str = ""
    """why PEFT refuses"""


SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("meta-llama/Llama-3.2-1B", {}),
    "qwen3": ("Qwen/Qwen3-0.6B", {}),
    "qwen2": ("Qwen/Qwen2.5-7B", {}),
    "gpt2": ("distilbert/distilgpt2", {}),
    "qwen3_moe": ("Qwen/Qwen3-30B-A3B", {}),
    "mixtral": ("mistralai/Mixtral-8x7B-Instruct-v0.1", {}),
    "gemma2": ("google/gemma-2-2b-it", {}),
    "gemma3_text": ("google/gemma-3-1b-it", {}),
    "phi3": ("microsoft/Phi-3-mini-4k-instruct", {}),
    "phi": ("microsoft/phi-2", {}),
    "deepseek_v3": ("deepseek-ai/DeepSeek-V3", {"first_k_dense_replace": 1}),
    "falcon_h1": ("tiiuae/Falcon-H1-1.5B-Base", {}),
    "mamba": ("state-spaces/mamba-790m-hf", {}),
    "gpt_oss": ("openai/gpt-oss-20b", {}),
    "mistral": ("mistralai/Mistral-7B-v0.1", {}),
    "lfm2": ("LiquidAI/LFM2-1.2B", {"layer_types": ["conv", "full_attention"]}),
}
"""name → a model of the catalogue, and fields beyond those of `shrunk`"""
_SIZES = {
    "hidden_size": 64, "n_embd": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "n_inner": 96,
    "block_ff_dim": 96,
    "num_hidden_layers": 2, "n_layer": 2, "num_attention_heads": 4, "n_head": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 160, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "q_lora_rank": 24,
    "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_group": 2, "topk_group": 1,
    "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "state_size": 8,
    "mamba_expand": 1, "expand": 2, "time_step_rank": 8, "sliding_window": 32, "query_pre_attn_scalar": 16,
    "num_nextn_predict_layers": None, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attn_dim": 64,
}  # fmt: skip


def shrunk(name: str) -> dict[str, Any]:
    """The configuration of a model of the catalogue with two layers and small widths."""
    model, more = SMALL[name]
    config = copy.deepcopy(model_config(model).config)
    config.update({key: value for key, value in _SIZES.items() if key in config})
    for key in ("layer_types", "rope_scaling", "quantization_config", "no_rope_layers"):
        if isinstance(config.get(key), list):
            config[key] = config[key][:2]
        elif key in ("rope_scaling", "quantization_config"):
            config.pop(key, None)
    return {**config, **more}


def peft_model(config: dict[str, Any], adapter: dict[str, Any], device: str = "cpu") -> Any:
    """PEFT's model over transformers' class, in bf16."""
    import torch
    from peft import get_peft_model
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    with torch.device(device):
        model = transformers_model(config, dtype=torch.bfloat16)
    fields = {key: value for key, value in adapter.items() if key != "peft_type"}
    peft_config = PEFT_TYPE_TO_CONFIG_MAPPING[adapter["peft_type"]](**copy.deepcopy(fields))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.config.use_cache = False
        return get_peft_model(model, peft_config)


def _key(name: str) -> str:
    """A name without the place where a shared tensor is found first."""
    for shared in SHARED:
        if f"{shared}.default" in name:
            return name[name.index(shared) :]
    found = re.search(r"frod_(V|s_indices|s_size)\..*", name)
    return found[0] if found else name


def _theirs(model: Any) -> tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]:
    parameters = {
        _key(name): (tuple(one.shape), one.requires_grad, DTYPES[str(one.dtype)[6:]])
        for name, one in model.named_parameters()
    }
    buffers = {
        _key(name): (tuple(one.shape), DTYPES[str(one.dtype)[6:]])
        for name, one in model.named_buffers()
        if (".default" in name and "modules_to_save" not in name) or name.endswith("boft_P")
    }
    return parameters, buffers


def _added(name: str, base: set[str]) -> bool:
    """Whether a parameter of PEFT's model is not the base model's own."""
    plain = re.sub(r"\.(base_layer|original_module|token_adapter)(?=\.)", "", name.removeprefix("base_model."))
    plain = re.sub(r"(self_attn|attn)\.model\.", r"\1.", plain)
    return not {plain, plain.removeprefix("model.")} & base


def differences(model: Any, ours: AdapterCount, layout: Layout) -> list[str]:
    """Where PEFT's model and our count are not the same."""
    parameters, buffers = _theirs(model)
    found: list[str] = []
    trainable, every = model.get_nb_trainable_parameters()
    if (trainable, every) != (ours.trainable, ours.total):
        found.append(f"trainable, total: theirs {trainable, every}, ours {ours.trainable, ours.total}")
    base = set(layout.tensors())
    added = {name: value for name, value in parameters.items() if _added(name, base)}
    made = {_key(one.name): (one.shape, one.trains, dtype_of(one, "bf16")) for one in ours.parameters}
    found += _unlike(added, made)
    held = {_key(one.name): (one.shape, dtype_of(one, "bf16")) for one in ours.buffers if _registered(one)}
    found += _unlike(buffers, held)
    thawed = {re.sub(r"^base_model\.(model\.)?|\.base_layer(?=\.)", "", name)
              for name, value in parameters.items() if value[1] and not _added(name, base)}  # fmt: skip
    if thawed != {name for name, _ in ours.thawed}:
        found.append(f"base that trains: theirs {sorted(thawed)[:3]}, ours {[name for name, _ in ours.thawed][:3]}")
    return found


def _registered(tensor: Tensor) -> bool:
    return tensor.name.split(".")[-2] not in UNREGISTERED


def _unlike(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    names = [name for name in theirs.keys() | ours.keys() if theirs.get(name) != ours.get(name)]
    return [f"{name}: theirs {theirs.get(name)}, ours {ours.get(name)}" for name in sorted(names)]


def compare(name: str, adapter: dict[str, Any], config: dict[str, Any] | None = None, device: str = "cpu") -> Compared:
    """One model under one configuration, both ways. A refusal of both is the same."""
    full = config or shrunk(name)
    layout = build_layout(name, full, name)
    ours, model, reason, error = None, None, "", ""
    try:
        ours = count(layout, read_adapter(copy.deepcopy(adapter), "adapter_config.json"))
    except Refused as refused:
        reason = str(refused).partition("\n")[0]
    try:
        model = peft_model(full, adapter, device)
    except Exception as wrong:
        error = f"{type(wrong).__name__}: {wrong}".partition("\n")[0][:200]
    if ours and model:
        return Compared(name, adapter, differences(model, ours, layout))
    alone = f"refused by us alone: {reason}" if model else f"refused by PEFT alone: {error}"
    differ = [] if (reason and error) or any(one in reason for one in STRICTER) else [alone]
    return Compared(name, adapter, differ, reason, error)


STRICTER = ("matches no module", "has no key heads of one width")
"""where we refuse and PEFT goes on: one of several targets that nothing answers to; a prefix of no known width"""


def main() -> None:
    """Print the figures."""
    from tests.models.test_adapters_cases import cases

    wanted = sys.argv[1:]
    done = [compare(*case) for case in cases() if not wanted or case[0] in wanted or case[1]["peft_type"] in wanted]
    for one in done:
        if one.differ:
            print(f"differs: {one.model} {json.dumps(one.config)}")
            for text in one.differ[:4]:
                print(f"    {text}")
    both = sum(bool(one.ours and one.theirs) for one in done)
    alone = sum(bool(one.ours and not one.theirs) for one in done)
    differ = sum(bool(one.differ) for one in done)
    if not wanted:
        compared, kinds = kinds_that_differ()
        print(f"{compared} types by the classes of their modules, {len(kinds)} differ", *kinds[:5], sep="\n    ")
    print(f"{len(done)} cases, {both} refused by both, {alone} by us alone, {differ} differ")


if __name__ == "__main__":
    if sys.argv[1:2] != ["facts"]:
        main()
    elif "--check" in sys.argv:
        print("up to date" if facts() == FILE.read_text() else "differs")
    else:
        FILE.write_text(facts())
