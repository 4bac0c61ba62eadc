"""Our tensors beside those of transformers' classes, built on the meta device: names and shapes, one by one.

`PYTHONPATH=src python -m tests.models.classes` prints the figures (it needs the extra `trace`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from vramcast.catalog.models import ModelRow, model_config, model_names
from vramcast.errors import Refused
from vramcast.models.describe import build_layout
from vramcast.models.types import Unknown

Tensors = dict[str, tuple[int, ...]]


class Compared(NamedTuple):
    """`differ`: names that one side lacks or has in another shape; None if transformers has no such class."""

    model: str
    model_type: str
    class_name: str
    tensors: int
    differ: list[str] | None
    why: str = ""


@cache
def smallest() -> dict[str, ModelRow]:
    """Model type → its smallest model of the catalogue."""
    found: dict[str, ModelRow] = {}
    for name in model_names():
        row = model_config(name)
        kept = found.get(row.config["model_type"])
        if kept is None or (row.params or 0) < (kept.params or 0):
            found[row.config["model_type"]] = row
    return found


def smallest_of_each_type() -> list[ModelRow]:
    """The smallest model of every type of the catalogue."""
    return list(smallest().values())


def theirs(config: dict[str, Any]) -> tuple[str, Tensors]:
    """The class that transformers builds for a config, and its parameters.

    Raises:
        LookupError: transformers has no class for this type.
    """
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    if config["model_type"] not in transformers.CONFIG_MAPPING:
        raise LookupError(f"no class for {config['model_type']}")
    settings = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(_plain(config))
    built: Any = getattr(transformers, (config.get("architectures") or [""])[0], None)
    mappings = ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING")
    for mapping in (getattr(modeling_auto, name) for name in mappings):
        if built is None and type(settings) in mapping:
            built = mapping[type(settings)]
    with torch.device("meta"):
        model = built(settings)
    return built.__name__, {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def _plain(value: Any) -> Any:
    """Infinity as JSON has it from Transformers."""
    if isinstance(value, dict):
        return float("inf") if value == {"__float__": "Infinity"} else {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def compare(row: ModelRow) -> Compared:
    """One model, both ways."""
    model_type = row.config["model_type"]
    try:
        class_name, reference = theirs(row.config)
    except (LookupError, ImportError, TypeError) as error:
        return Compared(row.id, model_type, "", 0, None, str(error).strip().partition("\n")[0])
    try:
        ours = build_layout(row.id, row.config, row.where).tensors()
    except Refused as refused:
        return Compared(row.id, model_type, class_name, len(reference), None, str(refused).partition("\n")[0])
    differ = sorted(name for name in ours.keys() | reference.keys() if ours.get(name) != reference.get(name))
    return Compared(row.id, model_type, class_name, len(reference), differ)


class Entry(NamedTuple):
    """A row of a mapping of Transformers: a model type and its class."""

    kind: str
    class_name: str


class Counted(NamedTuple):
    """How an entry was counted: parts, class, refused, not built, differs; and why, where it is not exact."""

    how: str
    params: int = 0
    why: str = ""


def entries() -> list[Entry]:
    """Transformers' causal-LM and image-text-to-text classes, by type."""
    from transformers.models.auto import modeling_auto as auto

    found: dict[Entry, None] = {}
    for mapping in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        for kind, names in mapping.items():
            found |= dict.fromkeys(Entry(kind, name) for name in ((names,) if isinstance(names, str) else names))
    return list(found)


def counted(entry: Entry) -> Counted:
    """An entry with its configuration's defaults, or those of a model of the catalogue where a class cannot be built
    from its defaults or they contradict each other: ours beside the class's own."""
    found = _counted(entry, _defaults(entry))
    if found.how in ("not built", "refused") and entry.kind in smallest():
        found = _counted(entry, lambda: smallest()[entry.kind].config)
    return found


def _counted(entry: Entry, config: Callable[[], dict[str, Any]]) -> Counted:
    from vramcast.models.counted import counted_layout
    from vramcast.trace.child.classes import count
    from vramcast.trace.question import ClassQuestion

    try:
        values = config() | {"architectures": [entry.class_name]}
        class_name, reference = theirs(values)
        if class_name != entry.class_name:
            return Counted("not built", 0, f"such a configuration is of the class {class_name}")
    except Exception as error:  # whatever a class says that cannot be built
        return Counted("not built", 0, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
    how = "parts"
    try:
        ours = build_layout(entry.kind, values, entry.kind)
    except Unknown as unknown:
        how, question = "class", ClassQuestion(config=values)
        ours = counted_layout(entry.kind, values, count(question), str(unknown))
    except Refused as refused:
        return Counted("refused", 0, "; ".join(mistake.fact for mistake in refused.mistakes[:2]))
    tensors = ours.tensors()
    for lump, shape in tensors.items():  # a tower that the table has as one number, where the class has its tensors
        parts = [name for name in reference if name.startswith(f"{lump.rpartition('.')[0]}.")]
        if lump not in reference and shape == (sum(math.prod(reference[name]) for name in parts),):
            reference = {name: size for name, size in reference.items() if name not in parts} | {lump: shape}
    differ = sorted(name for name in tensors.keys() | reference.keys() if tensors.get(name) != reference.get(name))
    if differ:
        first = differ[0]
        why = f"by {how}: {len(differ)} tensors, first {first}: {tensors.get(first)} / {reference.get(first)}"
        return Counted("differs", 0, why)
    return Counted(how, int(ours.params))


def adapted(entry: Entry) -> tuple[tuple[int, int], tuple[int, int]]:
    """(trainable, all parameters) of LoRA on all linear layers of a class of at most four layers: ours, PEFT's."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    from vramcast.models.adapters import count, lora_adapter
    from vramcast.models.counted import counted_layout
    from vramcast.trace.child.classes import count as count_class
    from vramcast.trace.child.model import configuration
    from vramcast.trace.question import ClassQuestion

    values = _defaults(entry)() | {"architectures": [entry.class_name]}
    if "layer_types" not in values and isinstance(values.get("num_hidden_layers"), int):
        values["num_hidden_layers"] = min(values["num_hidden_layers"], 4)
    with torch.device("meta"):
        model = getattr(transformers, entry.class_name)(configuration(values))
        model.tie_weights()
        task = "CAUSAL_LM" if "CausalLM" in entry.class_name else None
        theirs = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type=task))
    layout = counted_layout(entry.kind, values, count_class(ClassQuestion(config=values)), "")
    ours = count(layout, lora_adapter(4, ["all-linear"], source=""), "fp32")
    return (int(ours.trainable), int(ours.total)), theirs.get_nb_trainable_parameters()


def _defaults(entry: Entry) -> Callable[[], dict[str, Any]]:
    def config() -> dict[str, Any]:
        """As `save_pretrained` writes it: of the part that the class is about."""
        import transformers

        settings: Any = transformers.CONFIG_MAPPING[entry.kind](**REPAIRED.get(entry.kind, {}))
        taken = getattr(transformers, entry.class_name).config_class
        parts = [getattr(settings, name, None) for name in settings.sub_configs]
        if not isinstance(settings, taken):
            settings = next((part for part in parts if isinstance(part, taken)), settings)
        found = json.loads(settings.to_json_string(use_diff=False))
        return {name: value for name, value in found.items() if value is not None} | {"model_type": settings.model_type}

    return config


def own_kind(entry: Entry) -> str:
    """The type of the configuration that the class is built from: of a part of the entry's, for some."""
    try:
        return _defaults(entry)()["model_type"]
    except Exception:  # defaults that its own checks refuse
        return entry.kind


_INDEXER = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 2048,
            "indexer_compress_ratio": 4}  # fmt: skip
REPAIRED: dict[str, dict[str, Any]] = {
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "emu3": {"vocabulary_map": {"<image>": 4, "<|extra_200|>": 5}},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_theta": 10000.0, "rope_type": "default"}}},
    "cohere_compass": {
        "text_config": {"rope_parameters": {"full_attention": {"rope_theta": 10000.0, "rope_type": "default"}}}
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "hunyuan_vl": {"text_config": {"head_dim": 128}},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "downsample_rate": "1/2", "spatial_target_layers": [0]},
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": {"text_config": _INDEXER},
    "diffusion_gemma": {"text_config": {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 512}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense"] + ["sparse"] * 31, "num_experts_per_tok": 6}},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "reformer": {"is_decoder": True},
}
"""what the defaults of a configuration leave out or contradict, and its class needs"""


def main() -> None:
    """Print the figures."""
    found = [compare(row) for row in smallest_of_each_type()]
    built = [one for one in found if one.differ is not None]
    for one in found:
        if one.differ is None:
            print(f"not compared: {one.model_type}: {one.why}")
        elif one.differ:
            print(f"differs: {one.model_type} ({one.model}): {len(one.differ)}, first {one.differ[0]}")
    classes = {one.class_name for one in built}
    print(f"{len(built)} types, {len(classes)} classes, {sum(one.tensors for one in built):,} tensors,"
          f" {sum(bool(one.differ) for one in built)} differ")  # fmt: skip


if __name__ == "__main__":
    main()
