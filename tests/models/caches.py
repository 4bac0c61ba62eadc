"""What we say a model keeps beside the caches of transformers' classes, run on the meta device: layer by layer.

`PYTHONPATH=src python -m tests.models.caches` prints the figures (it needs the extra `trace`); it builds the smallest
catalogue model of every type at its full size, without memory for a single weight.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec import structs
from tests.models.classes import smallest_of_each_type

from vramcast.catalog.models import ModelRow
from vramcast.errors import Refused
from vramcast.models.cache.formats import formats
from vramcast.models.cache.kinds import LayerKind, cache_kinds
from vramcast.models.cache.sizes import layer_bytes
from vramcast.models.describe import build_layout

BATCH, SHORT, IMAGE = 2, 37, 11
"""sequences, tokens of a short prompt, tokens of an image that cross attention reads"""
LONGEST = 20_000


class Compared(NamedTuple):
    """`differ`: layers whose bytes differ; None if transformers has no such class or cannot be run so."""

    model: str
    model_type: str
    tokens: int
    layers: int
    bytes: int
    differ: list[str] | None
    why: str = ""


def tensors_of(value: Any) -> Iterator[Any]:
    """Every tensor of a cache layer with more than one element."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.numel() > 1:
            yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_of(one)


def run(config: dict[str, Any], tokens: int) -> Any:
    """The cache after a prompt of `tokens - 1` and a step, on the meta device.

    Raises:
        LookupError: transformers has no class for this type.
    """
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as CAUSAL

    if config["model_type"] not in transformers.CONFIG_MAPPING:
        raise LookupError(f"no class for {config['model_type']}")
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    settings = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    torch.distributions.Distribution.set_default_validate_args(False)  # the meta device has no values to check
    text = settings.get_text_config(decoder=True)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = CAUSAL[type(text)](text).eval() if type(text) in CAUSAL else _named(config)(settings).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    more: dict[str, Any] = {}
    with torch.no_grad(), torch.device("meta"):
        if config["model_type"] == "mllama":
            more["cross_attention_states"] = torch.zeros(BATCH, IMAGE, text.hidden_size, dtype=torch.bfloat16)
        ids = torch.zeros((BATCH, tokens - 1), dtype=torch.long)
        cache = _cache(model(input_ids=ids, use_cache=True, **more))
        if config["model_type"] in ("mllama", "gemma4"):
            return cache, tokens - 1  # a step needs values that the meta device does not have
        step = "cache_params" if hasattr(cache, "conv_kernel_size") else "past_key_values"
        return _cache(model(input_ids=ids[:, :1], use_cache=True, **{step: cache})), tokens


def _named(config: dict[str, Any]) -> Any:
    import transformers

    return getattr(transformers, config["architectures"][0])


def _cache(out: Any) -> Any:
    found = getattr(out, "past_key_values", None)
    return found if found is not None else out.cache_params


def held(cache: Any, layer: int) -> int:
    """Bytes of one sequence in a layer; a tensor that stands twice counts once."""
    own = [*tensors_of(vars(cache.layers[layer]))] if layer < len(cache.layers) else []
    linear = getattr(cache, "linear_cache", None) or []
    own += [*tensors_of({0: linear[layer]})] if layer < len(linear) else []
    return sum(one.numel() * one.element_size() for one in {id(one): one for one in own}.values()) // BATCH


def _as_viewed(kind: LayerKind) -> LayerKind:
    """Transformers keeps a view of one token less than the window; the memory behind it holds the window."""
    parts = [structs.replace(part, span=part.span - 1) if part.keeps == "token" and part.span else part
             for part in kind.parts]  # fmt: skip
    return structs.replace(kind, parts=tuple(parts))


def compare(row: ModelRow, tokens: int) -> Compared:
    """One model, both ways."""
    model_type = row.config["model_type"]
    try:
        layout = build_layout(row.id, row.config, row.where)
        kinds = cache_kinds(layout, row.config, row.where)
        cache, tokens = run(row.config, tokens)
    except (LookupError, ImportError, Refused, RuntimeError, AttributeError, TypeError) as error:
        return Compared(row.id, model_type, tokens, 0, 0, None, str(error).strip().partition("\n")[0][:120])
    found = formats(kinds, "transformers", _dtype(cache))
    ours = {
        layer: layer_bytes(_as_viewed(kind), found, tokens, encoder=IMAGE) for kind in kinds for layer in kind.layers
    }
    theirs = {layer: held(cache, layer) for layer in ours}
    differ = [f"layer {layer}: {ours[layer]:,} for {theirs[layer]:,}" for layer in ours if ours[layer] != theirs[layer]]
    return Compared(row.id, model_type, tokens, len(ours), sum(theirs.values()), differ)


def _dtype(cache: Any) -> str:
    """That of the model: the meta device has no values, so most are built in bf16."""
    names = {str(one.dtype)[6:] for layer in cache.layers for one in tensors_of(vars(layer))}
    return "fp16" if "float16" in names else "bf16"


def lengths(row: ModelRow) -> list[int]:
    """A short prompt, and one longer than every window."""
    layout = build_layout(row.id, row.config, row.where)
    spans = {part.span for kind in cache_kinds(layout, row.config, row.where) for part in kind.parts if part.span}
    long = max(spans, default=0) + 6
    return [SHORT, long] if 6 < long < LONGEST else [SHORT]


def main(names: Sequence[str]) -> None:
    """Print the figures."""
    warnings.filterwarnings("ignore")
    found: list[Compared] = []
    for row in smallest_of_each_type():
        if names and row.config["model_type"] not in names:
            continue
        try:
            found += [compare(row, tokens) for tokens in lengths(row)]
        except Refused as refused:
            found.append(Compared(row.id, row.config["model_type"], 0, 0, 0, None, str(refused)[:120]))
        one = found[-1]
        if one.differ is None:
            print(f"not compared: {one.model_type} ({one.model}): {one.why}")
        for one in found[-2:]:
            if one.differ:
                where = f"{one.model_type} ({one.model}), {one.tokens} tokens"
                print(f"differs: {where}: {len(one.differ)}, first {one.differ[0]}")
    built = [one for one in found if one.differ is not None]
    types = {one.model_type for one in built}
    print(f"{len(types)} types, {sum(one.layers for one in built):,} layers in {len(built)} runs,"
          f" {sum(len(one.differ or ()) for one in built)} differ")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
