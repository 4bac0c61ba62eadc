"""What rows say in their own words -> our paths: the part that is the same in every stack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from tools.rows.jobs import Skip
from tools.rows.names import find_model
from tools.rows.run import Run

from vramcast.catalog.gpus import find_gpu
from vramcast.catalog.models import ModelRow
from vramcast.errors import Refused
from vramcast.models.adapters.count import count
from vramcast.models.adapters.read import lora_adapter
from vramcast.models.arch import build_arch
from vramcast.models.describe import build_layout

Said: TypeAlias = tuple[str, object, str]
"""path, value, and the cause: a field of the row, or the place in the stack's own source"""

_OPTIMIZERS = {
    "adamw8bit": "adamw_8bit", "bnb8bit": "adamw_8bit", "adamw_torch": "adamw", "adamw_torch_fused": "adamw",
}  # fmt: skip
_PACKED: dict[str, tuple[tuple[str, object], ...]] = {
    "nf4": (("quant.kind", "nf4"),),
    "nf4-dq": (("quant.kind", "nf4"), ("quant.double", True)),
    "gptq-int4": (("quant.kind", "gptq"), ("quant.bits", 4)),
    "int8": (("quant.kind", "int8"),),
}
_TUNING = {"gptq-lora": "lora"}
_SHARDS = {"1": "zero1", "2": "zero2", "3": "zero3"}
_OFFLOADS = {
    "params": "weights", "grads": "gradients", "optimizer": "optimizer", "activations": "activations",
    "activation_checkpoints": "activations",
}  # fmt: skip
_CARDS = (("a100-40", "a100-sxm-40gb"), ("a100", "a100-sxm-80gb"), ("h100", "h100-sxm-80gb"),
          ("v100-16", "v100-sxm2-16gb"), ("b200", "b200-180gb"))  # fmt: skip
"""names that several cards of one chip share, which differ in nothing that PyTorch counts"""


def words(run: Run) -> Iterator[Said]:
    """Everything that is said in a word of our own, field by field.

    Raises:
        Skip: what no path stands for.
    """
    yield "algorithm", "pretrain" if run.workload == "pretrain" else "sft", "row: workload"
    yield from _model(run)
    yield from _card(run)
    yield from _precision(run)
    yield from _tuning(run)
    yield from _optimizer(run)
    yield from _work(run)
    yield from _kernels(run)
    yield from _layout(run)


def _model(run: Run) -> Iterator[Said]:
    found = _found(run)
    if found is None:
        raise Skip(f"the catalogue has no model {(run.model or {}).get('name')!r}")
    yield "model", found.id, "row: model"


def _found(run: Run) -> ModelRow | None:
    described = run.model or {}
    return find_model(str(described.get("name") or ""), described.get("config") or {}, described.get("params_b"))


def _card(run: Run) -> Iterator[Said]:
    """The card; none where the source does not name it."""
    name = re.sub(r"\(.*?\)", "", run.gpu or "").strip()
    if not name or "unknown" in name or name.replace("GB", "").isdigit():
        return
    try:
        yield "gpu", find_gpu(name).id, "row: gpu"
    except Refused:
        for start, card in _CARDS:
            if name.lower().startswith(start):
                yield "gpu", card, "row: gpu, one of several of that name"
                return


def _precision(run: Run) -> Iterator[Said]:
    compute = re.match(r"(bf16|fp16|fp32)\s*(\((?:autocast|amp)\))?$", run.compute_dtype or "")
    if run.compute_dtype and compute is None:
        raise Skip(f"not modelled yet: products in {run.compute_dtype!r}")
    if compute is not None:
        yield "compute_dtype", compute[1], "row: compute_dtype"
        yield "autocast", bool(compute[2]), "row: compute_dtype"
    stored = re.match(r"[\w-]+", run.weights_dtype or "")
    packed = _PACKED.get(stored[0] if stored else "")
    if packed is None:
        if run.weights_dtype:
            yield "weights_dtype", run.weights_dtype, "row: weights_dtype"
        return
    for path, value in packed:
        yield path, value, "row: weights_dtype"
    if run.double_quant is not None:
        yield "quant.double", run.double_quant, "row: double_quant"
    if compute is not None:
        yield "weights_dtype", compute[1], "row: compute_dtype, in which a packed model is loaded"


def _tuning(run: Run) -> Iterator[Said]:
    if not run.tuning:
        raise Skip("the source does not say what trains")
    adapter = run.lora or {}
    method: dict[str, Any] = adapter.get("method_config") or {}
    kind = str(method.get("peft_type") or "LORA")
    if kind != "LORA":
        raise Skip(f"not modelled yet: training with PEFT's {kind}")
    yield "tuning", _TUNING.get(run.tuning, run.tuning), "row: tuning"
    if adapter.get("rank") is not None:
        yield "lora.rank", adapter["rank"], "row: lora.rank"
    if adapter.get("targets") is not None:
        yield "lora.targets", _targets(run, adapter["targets"]), "row: lora.targets, of which PEFT takes what matches"
    if method.get("use_dora"):
        yield "lora.dora", True, "row: lora.method_config.use_dora"


def _targets(run: Run, named: str | list[str]) -> list[str]:
    """The names that match a layer, as PEFT ignores the others; all of them where none does, to be refused."""
    targets = [named] if isinstance(named, str) else named
    found = _found(run)
    try:
        layers = build_arch(found.id, found.config, found.where).linears if found is not None else ()
    except Refused:
        return targets  # the forecast says why
    return [name for name in targets if name in layers] or targets


def plain_lora(run: Run) -> None:
    """Refuse a method of another name that is written down as LoRA: it trains another number of parameters.

    Raises:
        Skip: with both numbers.
    """
    adapter, stated = run.lora or {}, run.details.get("num_trainable_params") or run.params.get("trainable")
    found = _found(run)
    if run.tuning not in ("lora", "qlora") or not adapter.get("rank") or stated is None or found is None:
        return
    layout = build_layout(found.id, found.config, found.where)
    expected = int(count(layout, lora_adapter(adapter["rank"], adapter.get("targets"))).trainable)
    if expected != stated:
        raise Skip(f"not plain LoRA: it trains {stated:,} parameters, LoRA of this rank {expected:,}")


def _optimizer(run: Run) -> Iterator[Said]:
    if run.optimizer_in_backward:
        raise Skip("not modelled yet: an optimizer that steps within backward")
    if run.optimizer:
        yield "optimizer", _OPTIMIZERS.get(run.optimizer, run.optimizer), "row: optimizer"
        if run.optimizer == "adamw_torch_fused":
            yield "optimizer.impl", "fused", "row: optimizer"


def _work(run: Run) -> Iterator[Said]:
    for path, value in (("micro_batch", run.micro_batch), ("seq_len", run.seq_len)):
        if value is not None:
            yield path, value, f"row: {path}"
    if run.packed is not None:
        yield "packing", run.packed, "row: packed"


def _kernels(run: Run) -> Iterator[Said]:
    if run.checkpointing:
        yield "recompute", run.checkpointing, "row: checkpointing"
    if "EFFICIENT" in (run.sdpa_backend or ""):
        yield "attention", "efficient", "row: sdpa_backend"
    elif run.attention and run.attention != "sdpa":  # of sdpa's kernels torch picks one, by the card
        yield "attention", run.attention, "row: attention"
    if run.loss == "liger":
        yield "fused_kernels", "liger", "row: loss"
    elif run.loss:
        yield "loss", run.loss, "row: loss"
    if run.compile:
        yield "compile", True, "row: compile"
    for what, home in (run.offload or {}).items():
        yield f"offload.{_OFFLOADS.get(what, what)}", home, "row: offload"


def _layout(run: Run) -> Iterator[Said]:
    layout = run.parallel or {}
    gpus = layout.get("gpus")
    if gpus is None:
        raise Skip("the source does not say on how many GPUs")
    yield "gpus", gpus, "row: parallel.gpus"
    for name, path in (("tp", "tp"), ("pp", "pp"), ("cp", "cp"), ("ep", "ep"), ("ulysses_sp", "ulysses")):
        if (layout.get(name) or 1) > 1:
            yield path, layout[name], f"row: parallel.{name}"
    if layout.get("zero"):
        yield "shard", _SHARDS.get(str(layout["zero"]), layout["zero"]), "row: parallel.zero"
