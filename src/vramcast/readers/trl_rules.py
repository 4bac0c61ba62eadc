"""TRL keys whose meaning depends on other keys, one small rule for each matter. Read in trl 1.16.0."""

from __future__ import annotations

from typing import Any

from vramcast.readers.trl_keys import DTYPES, OPTIMIZERS, flag, number, one_of, whole
from vramcast.readers.trl_sheet import Sheet
from vramcast.types.paths import PATHS

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_VARIANTS = PATHS["grpo.variant"].choices
_RECOMPUTE = {"selective": "selective", "offload": "offloaded"}
_GROUP = 8
"""GRPOConfig.num_generations, when the file does not say it."""


def environment(sheet: Sheet) -> None:
    """`env`: variables that TRL exports before it starts."""
    for name, value in sheet.table("env").items():
        key = f"env.{name}"
        if name in _ALLOCATOR:
            sheet.fact("allocator", str(value), key)
        elif name == "CUDA_VISIBLE_DEVICES":
            cards = [card for card in str(value).split(",") if card.strip() not in ("", "-1")]
            if cards:
                sheet.fact("gpus", len(cards), key)


def model_arguments(sheet: Sheet) -> None:
    """`model_init_kwargs` is merged over the arguments that trl's scripts make from dtype and attn_implementation."""
    for name, value in sheet.table("model_init_kwargs").items():
        written = f"model_init_kwargs.{name}"
        key = "dtype" if name == "torch_dtype" else name
        if key in ("dtype", "attn_implementation"):
            sheet.take_as(written, key, value)
        else:
            sheet.leave(written)


def precision(sheet: Sheet) -> None:
    """Weights by dtype; autocast and its dtype by bf16 and fp16."""
    dtype = sheet.get("dtype")
    if dtype == "auto" or (dtype is None and "dtype" in sheet.content):
        sheet.warn("dtype", "means the checkpoint's dtype, which is taken to be bf16")
        sheet.fact("weights_dtype", "bf16", "dtype")
    elif dtype is not None:
        with sheet.reading("dtype"):
            sheet.fact("weights_dtype", one_of(DTYPES)(dtype), "dtype")
    bf16, fp16 = sheet.flag("bf16"), sheet.flag("fp16")
    if bf16 and fp16:
        sheet.mistakes.add("bf16 and fp16 exclude each other", **{"from": sheet.where("fp16")})
    elif bf16 or fp16:
        sheet.fact("autocast", True, "bf16" if bf16 else "fp16")
        sheet.fact("compute_dtype", "bf16" if bf16 else "fp16", "bf16" if bf16 else "fp16")
    elif bf16 is False:  # left out, or null, it is switched on
        sheet.fact("autocast", False, "bf16")


def adapters(sheet: Sheet) -> None:
    """Tuning and the quantised base."""
    peft, four, eight = sheet.flag("use_peft"), sheet.flag("load_in_4bit"), sheet.flag("load_in_8bit")
    if peft is not None:
        sheet.fact("tuning", "full" if not peft else "qlora" if four or eight else "lora", "use_peft")
    if four and eight:
        sheet.mistakes.add("load_in_4bit and load_in_8bit exclude each other", **{"from": sheet.where("load_in_8bit")})
    elif four:
        _four_bit(sheet)
    elif eight:
        sheet.fact("quant.kind", "int8", "load_in_8bit")
    if (four or eight) and not peft:
        sheet.warn("load_in_4bit" if four else "load_in_8bit", "without use_peft: TRL does not train a quantised model")


def _four_bit(sheet: Sheet) -> None:
    key = "bnb_4bit_quant_type" if sheet.get("bnb_4bit_quant_type") else "load_in_4bit"
    sheet.fact("quant.kind", sheet.get("bnb_4bit_quant_type") or "nf4", key)
    if sheet.flag("use_bnb_nested_quant") is not None:
        sheet.fact("quant.double", sheet.flag("use_bnb_nested_quant"), "use_bnb_nested_quant")
    storage = sheet.get("bnb_4bit_quant_storage")
    if storage is not None:
        with sheet.reading("bnb_4bit_quant_storage"):
            kind = one_of({**DTYPES, "uint8": "int8"})(storage)
            sheet.fact("quant.storage", kind, "bnb_4bit_quant_storage")


def lengths(sheet: Sheet) -> None:
    """The longest sequence, and what shorter ones are padded to."""
    if "max_length" in sheet.content and sheet.get("max_length") is None:
        sheet.needs("seq_len", "max_length", "is null: no length limit")
    elif "max_length" in sheet.content:
        sheet.fact("seq_len", sheet.get("max_length"), "max_length")
    if sheet.flag("padding_free"):
        sheet.fact("padding", "free", "padding_free")
    elif sheet.flag("packing") and sheet.get("packing_strategy") == "wrapped":
        sheet.fact("padding", "longest", "packing_strategy")


def optimizer(sheet: Sheet) -> None:
    """`optim` names the optimizer and how torch runs it."""
    if sheet.get("optim") is None:
        return
    with sheet.reading("optim"):
        name, implementation = one_of(OPTIMIZERS)(sheet.get("optim"))
        sheet.fact("optimizer", name, "optim")
        if implementation:
            sheet.fact("optimizer.impl", implementation, "optim")


def recompute(sheet: Sheet) -> None:
    """`activation_checkpointing`, or its deprecated alias `gradient_checkpointing`, with its options."""
    named = ("activation_checkpointing", "gradient_checkpointing")
    key = next((key for key in named if sheet.get(key) is not None), "")
    on = sheet.flag(key) if key else None
    options = next((f"{key}_kwargs" for key in named if sheet.get(f"{key}_kwargs") is not None), "")
    for name, value in sheet.table(options).items():
        _option(sheet, f"{options}.{name}", name, value, on)
    if on is not None:
        sheet.fact("recompute", "full" if on else "none", key)


def _option(sheet: Sheet, key: str, name: str, value: Any, on: bool | None) -> None:
    if value is None:
        return
    if name == "use_reentrant":
        sheet.fact("recompute.reentrant", value, key)
    elif name == "every_n_layers":
        sheet.fact("recompute.every", value, key)
    elif name in _RECOMPUTE:
        with sheet.reading(key):
            if flag(value) and on is not False:
                sheet.fact("recompute", _RECOMPUTE[name], key)
    else:
        sheet.leave(key)


def loss(sheet: Sheet, kind: str) -> None:
    """Label smoothing needs the full logits in SFT; in GRPO `loss_type` names the variant."""
    smoothing = sheet.get("label_smoothing_factor")
    if kind == "sft" and smoothing is not None and sheet.get("loss_type") != "dft":
        with sheet.reading("label_smoothing_factor"):
            if number(smoothing) > 0:
                sheet.fact("loss", "full", "label_smoothing_factor")
    if kind == "grpo" and sheet.get("loss_type") in _VARIANTS:
        sheet.fact("grpo.variant", sheet.get("loss_type"), "loss_type")


def roles(sheet: Sheet, kind: str) -> None:
    """The reference of GRPO by beta, that of DPO by whether its log-probs are made before; the reward."""
    beta = sheet.get("beta")
    if kind == "grpo" and beta is not None:
        with sheet.reading("beta"):
            with_reference = "adapter_off" if sheet.flag("use_peft") else "copy"
            sheet.fact("reference.kind", with_reference if number(beta) else "none", "beta")
    if sheet.flag("precompute_ref_log_probs"):
        sheet.fact("reference.kind", "precomputed", "precompute_ref_log_probs")
    if sheet.get("reward_model_name_or_path"):
        sheet.fact("reward.kind", "model", "reward_model_name_or_path")
        sheet.fact("reward.model", sheet.get("reward_model_name_or_path"), "reward_model_name_or_path")
    elif sheet.get("reward_funcs"):
        sheet.fact("reward.kind", "rules", "reward_funcs")


def generation(sheet: Sheet) -> None:
    """`generation_batch_size` counts sequences over all GPUs; ours counts prompts."""
    if sheet.get("generation_batch_size") is None:
        return
    with sheet.reading("generation_batch_size"):
        sequences, group = whole(sheet.get("generation_batch_size")), whole(sheet.get("num_generations") or _GROUP)
        if sequences % group:
            raise ValueError(f"{sequences} is not divisible by num_generations = {group}")
        sheet.fact("prompts_per_step", sequences // group, "generation_batch_size")


def evaluation(sheet: Sheet) -> None:
    """The evaluation batch counts only if the run evaluates; YAML reads the unquoted word `no` as false."""
    size = sheet.get("per_device_eval_batch_size")
    evaluates = sheet.flag("do_eval") or sheet.get("eval_strategy") not in (None, False, "no")
    if size is not None and evaluates:
        sheet.fact("eval.micro_batch", size, "per_device_eval_batch_size")
