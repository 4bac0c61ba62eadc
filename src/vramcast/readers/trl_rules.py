"""TRL keys whose meaning depends on other keys, one small rule for each matter. Read in trl 1.16.0."""

from __future__ import annotations

from typing import Any

from vramcast.readers.trl_keys import DTYPES, OPTIMIZERS, flag, number, one_of, whole
from vramcast.readers.trl_sheet import Sheet
from vramcast.types.paths import PATHS

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_QUIET = ("WANDB_", "HF_", "TOKENIZERS_", "TRANSFORMERS_", "OMP_", "MKL_", "PYTHON", "TRACKIO_", "LOG")
"""Beginnings of variables that change no memory on the card."""
_VARIANTS = PATHS["grpo.variant"].choices
_RECOMPUTE = {"selective": "selective", "offload": "offloaded"}
_GROUPS = {"grpo": 8, "rloo": 2}
"""num_generations of GRPOConfig and RLOOConfig, when the file does not say it."""
_BATCH = 8
"""per_device_train_batch_size and per_device_eval_batch_size, when the file does not say them."""
_REDUCTIONS = frozenset("bnpo cispo sapo luspo vespo".split())
"""Losses of GRPO that weigh the same log-probabilities otherwise."""
_OFF = "off"


def environment(sheet: Sheet) -> None:
    """`env`: variables that TRL exports before it starts."""
    for name, value in sheet.table("env").items():
        key = f"env.{name}"
        cards = [card for card in str(value).split(",") if card.strip() not in ("", "-1")]
        if name in _ALLOCATOR:
            sheet.fact("allocator", str(value), key)
        elif name == "CUDA_VISIBLE_DEVICES" and cards:
            sheet.fact("gpus", len(cards), key)
        elif name.startswith(_QUIET):
            sheet.rest(key)
        else:
            sheet.leave(key)


def model_arguments(sheet: Sheet) -> None:
    """`model_init_kwargs` is merged over the arguments that trl's scripts make from dtype and attn_implementation."""
    for name, value in sheet.table("model_init_kwargs").items():
        written = f"model_init_kwargs.{name}"
        key = "dtype" if name == "torch_dtype" else name
        if key in ("dtype", "attn_implementation"):
            if key in sheet.said:
                sheet.rest(key, f"{written} counts")
            sheet.take_as(written, key, value)
        elif name in ("use_cache", "trust_remote_code", "revision"):
            sheet.rest(written)
        elif name in ("device_map", "quantization_config", "max_memory", "tp_plan"):
            sheet.refuse(written, "where the model is put, or how it is packed", value)
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
            if not isinstance(dtype, str) or dtype.removeprefix("torch.") not in DTYPES:
                raise ValueError(f"{dtype!r} is none of TRL's values: auto, {', '.join(DTYPES)}")
            sheet.fact("weights_dtype", DTYPES[dtype.removeprefix("torch.")], "dtype")
    bf16, fp16 = sheet.flag("bf16"), sheet.flag("fp16")
    if bf16 and fp16:
        sheet.mistakes.add("bf16 and fp16 exclude each other", **{"from": sheet.where("fp16")})
        sheet.settled.update(("bf16", "fp16"))
    elif bf16 or fp16:
        sheet.fact("autocast", True, "bf16" if bf16 else "fp16")
        sheet.fact("compute_dtype", "bf16" if bf16 else "fp16", "bf16" if bf16 else "fp16")
    elif bf16 is False:  # left out, or null, it is switched on
        sheet.fact("autocast", False, "bf16")
    for key, on in (("bf16", bf16), ("fp16", fp16)):
        if on is False and key not in sheet.settled:
            sheet.rest(key, _OFF)


def adapters(sheet: Sheet) -> None:
    """Tuning and the quantised base."""
    peft, four, eight = sheet.flag("use_peft"), sheet.flag("load_in_4bit"), sheet.flag("load_in_8bit")
    if peft is not None:
        sheet.fact("tuning", "full" if not peft else "qlora" if four or eight else "lora", "use_peft")
    if four and eight:
        sheet.mistakes.add("load_in_4bit and load_in_8bit exclude each other", **{"from": sheet.where("load_in_8bit")})
        sheet.settled.update(("load_in_4bit", "load_in_8bit"))
    elif four:
        _four_bit(sheet)
    elif eight:
        sheet.fact("quant.kind", "int8", "load_in_8bit")
    if (four or eight) and not peft:
        sheet.warn("load_in_4bit" if four else "load_in_8bit", "without use_peft: TRL does not train a quantised model")
    for key in ("load_in_4bit", "load_in_8bit"):
        if sheet.get(key) is not None and key not in sheet.settled:
            sheet.rest(key, _OFF if not sheet.flag(key) else "")
    for key in ("bnb_4bit_quant_type", "bnb_4bit_quant_storage", "use_bnb_nested_quant"):
        if sheet.get(key) is not None and not four:
            sheet.rest(key, "only with load_in_4bit")


def _four_bit(sheet: Sheet) -> None:
    sheet.settled.add("load_in_4bit")
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
    """The longest sequence, and what shorter ones are padded to. `model_max_length` and `block_size` are what
    scripts around the plain Trainer call it."""
    if "max_length" in sheet.content and sheet.get("max_length") is None:
        sheet.needs("seq_len", "max_length", "is null: no length limit")
    elif "max_length" in sheet.content:
        sheet.fact("seq_len", sheet.get("max_length"), "max_length")
    for key in ("model_max_length", "block_size"):
        if sheet.get(key) is not None and "max_length" in sheet.content:
            sheet.rest(key, f"{sheet.label('max_length')} counts")
        elif sheet.get(key) is not None:
            sheet.fact("seq_len", sheet.get(key), key)
    free, packing, strategy = sheet.flag("padding_free"), sheet.flag("packing"), sheet.get("packing_strategy")
    if free:
        sheet.fact("padding", "free", "padding_free")
    elif packing and strategy == "wrapped":
        sheet.fact("padding", "longest", "packing_strategy")
    elif free is False:
        sheet.rest("padding_free", _OFF)
    if strategy is not None and "packing_strategy" not in sheet.settled:
        if strategy in ("bfd", "bfd_split", "bfd-requeue", "ffd", "wrapped"):
            why = "fills the length without padding" if packing or free else "only with packing"
            sheet.rest("packing_strategy", why)
        else:
            sheet.leave("packing_strategy")


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
    if sheet.get("gradient_checkpointing_use_reentrant") is not None:  # of trl's scripts
        with sheet.reading("gradient_checkpointing_use_reentrant"):
            reentrant = flag(sheet.get("gradient_checkpointing_use_reentrant"))
            sheet.fact("recompute.reentrant", reentrant, "gradient_checkpointing_use_reentrant")
    if on is not None:
        sheet.fact("recompute", "full" if on else "none", key)
    for name in named:
        for other, counts in ((name, key), (f"{name}_kwargs", options)):
            if sheet.get(other) is not None and counts != other:
                sheet.rest(other, f"{counts} counts")


def _option(sheet: Sheet, key: str, name: str, value: Any, on: bool | None) -> None:
    if value is None:
        sheet.rest(key, "null: as if it were left out")
    elif name == "use_reentrant":
        sheet.fact("recompute.reentrant", value, key)
    elif name == "every_n_layers":
        sheet.fact("recompute.every", value, key)
    elif name in _RECOMPUTE:
        with sheet.reading(key):
            if flag(value) and on is not False:
                sheet.fact("recompute", _RECOMPUTE[name], key)
            else:
                sheet.rest(key, _OFF if not flag(value) else "nothing is recomputed")
    else:
        sheet.leave(key)


def loss(sheet: Sheet, kind: str) -> None:
    """Label smoothing needs the full logits in SFT; in GRPO `loss_type` names the variant."""
    smoothing, named = sheet.get("label_smoothing_factor"), sheet.get("loss_type")
    if smoothing is not None:
        with sheet.reading("label_smoothing_factor"):
            if number(smoothing) > 0 and kind == "sft" and named != "dft":
                sheet.fact("loss", "full", "label_smoothing_factor")
            else:
                sheet.rest("label_smoothing_factor", _OFF if not number(smoothing) else "not in this trainer's loss")
    if named is None:
        return
    if not isinstance(named, str):
        sheet.leave("loss_type")
    elif kind == "grpo" and named in _VARIANTS:
        if all(fact.path != "grpo.variant" for fact in sheet.facts):
            sheet.fact("grpo.variant", named, "loss_type")
    elif kind == "grpo" and named in _REDUCTIONS:
        sheet.rest("loss_type", "it weighs the same log-probabilities")
    elif kind == "sft" and named in ("nll", "chunked_nll"):
        sheet.rest("loss_type", "the version's own loss: since trl 1.15 both names are one")
    elif kind in ("dpo", "kto"):
        sheet.rest("loss_type", "it weighs the same log-probabilities")
    else:
        sheet.leave("loss_type")


def roles(sheet: Sheet, kind: str) -> None:
    """The reference of GRPO by beta, that of DPO by whether its log-probs are made before; the reward."""
    beta = sheet.get("beta")
    if beta is not None:
        with sheet.reading("beta"):
            with_reference = "adapter_off" if sheet.flag("use_peft") else "copy"
            if kind == "grpo":
                sheet.fact("reference.kind", with_reference if number(beta) else "none", "beta")
            else:
                number(beta)
                sheet.rest("beta", "how much the reference weighs")
    if sheet.flag("precompute_ref_log_probs"):
        sheet.fact("reference.kind", "precomputed", "precompute_ref_log_probs")
    elif sheet.get("precompute_ref_log_probs") is not None:
        sheet.rest("precompute_ref_log_probs", _OFF)
    if sheet.get("reward_model_name_or_path"):
        sheet.fact("reward.kind", "model", "reward_model_name_or_path")
        sheet.fact("reward.model", sheet.get("reward_model_name_or_path"), "reward_model_name_or_path")
        if sheet.get("reward_funcs"):
            sheet.rest("reward_funcs", "functions beside the model")
    elif sheet.get("reward_funcs"):
        sheet.fact("reward.kind", "rules", "reward_funcs")


def generation(sheet: Sheet, trainer: str) -> None:
    """`generation_batch_size` counts sequences over all GPUs; ours counts prompts."""
    key = "generation_batch_size"
    if sheet.get(key) is not None:
        with sheet.reading(key):
            sequences, group = whole(sheet.get(key)), whole(sheet.get("num_generations") or _GROUPS.get(trainer, 8))
            if sequences % group:
                raise ValueError(f"{sequences} is not divisible by num_generations = {group}")
            sheet.fact("prompts_per_step", sequences // group, key)
    _steps(sheet, trainer)
    if sheet.get("num_iterations") is not None:
        with sheet.reading("num_iterations"):
            whole(sheet.get("num_iterations"))
            sheet.rest("num_iterations", "the same responses are learned from again, one micro-batch at a time")


def _steps(sheet: Sheet, trainer: str) -> None:
    """How many micro-batches of responses are generated at once: those of an optimizer step, unless this says it."""
    key = "steps_per_generation"
    if sheet.get(key) is None:
        return
    with sheet.reading(key):
        steps, accumulation = whole(sheet.get(key)), whole(sheet.get("gradient_accumulation_steps") or 1)
        if sheet.get("generation_batch_size") is not None:
            raise ValueError("generation_batch_size says it already: TRL refuses both")
        micro = whole(sheet.get("per_device_train_batch_size") or _BATCH)
        group = whole(sheet.get("num_generations") or _GROUPS.get(trainer, 8))
        if steps == accumulation:
            sheet.rest(key, "as many as gradient_accumulation_steps, the default")
        elif sheet.get("use_vllm") and sheet.get("vllm_mode") == "server" and micro * accumulation % group == 0:
            sheet.rest(key, "the server generates")
        else:
            text = f"generates {micro} × {steps} responses a GPU at once: this × GPUs / num_generations are the prompts"
            sheet.needs("prompts_per_step", key, text)


def engine(sheet: Sheet) -> None:
    """What generates beside `use_vllm` and its sizes."""
    vllm = bool(sheet.flag("use_vllm"))
    cache, model, dtype = (sheet.get(key) for key in ("cache_implementation", "vllm_model_impl", "vllm_dtype"))
    if cache is not None and (vllm or cache == "dynamic"):
        sheet.rest("cache_implementation", "vLLM generates" if vllm else "the default")
    elif cache is not None:
        sheet.refuse("cache_implementation", "the cache of Transformers' own generation")
    if model is not None and (model == "vllm" or not vllm):
        sheet.rest("vllm_model_impl", "only with use_vllm" if not vllm else "the default")
    elif model is not None:
        sheet.refuse("vllm_model_impl", "vLLM runs Transformers' code")
    if dtype == "auto":
        sheet.rest("vllm_dtype", "the default")
    elif dtype is not None:
        with sheet.reading("vllm_dtype"):
            sheet.fact("engine.dtype", one_of(DTYPES)(dtype), "vllm_dtype")
    device = sheet.get("vllm_device")
    if device == "auto" or (device is not None and not vllm):
        sheet.rest("vllm_device", "only with use_vllm" if not vllm else "the default")
    elif device is not None:
        sheet.fact("engine.process", "trainer" if device in ("cuda", "cuda:0") else "server", "vllm_device")
    whole_model = sheet.flag("ds3_gather_for_generation")
    if whole_model is not None:
        sheet.rest("ds3_gather_for_generation", "only with ZeRO-3")
    corrects = sheet.flag("vllm_importance_sampling_correction")
    if corrects is not None:
        sheet.rest(
            "vllm_importance_sampling_correction",
            "the default" if corrects else "the pass that it leaves out stays below the learning step",
        )


def evaluation(sheet: Sheet) -> None:
    """Evaluation is left out, and said to be; YAML reads the unquoted word `no` as false."""
    size, strategy, asked = sheet.get("per_device_eval_batch_size"), sheet.get("eval_strategy"), sheet.flag("do_eval")
    runs = bool(asked) or strategy not in (None, False, "no")
    for key in ("eval_strategy", "do_eval", "per_device_eval_batch_size"):
        if sheet.get(key) is not None:
            sheet.rest(key, "evaluation is left out" if runs else "the run does not evaluate")
    if not runs:
        return
    with sheet.reading("per_device_eval_batch_size"):
        evaluated = whole(size if size is not None else _BATCH)
        trained = whole(sheet.get("per_device_train_batch_size") or _BATCH)
        key = "per_device_eval_batch_size" if size is not None else "eval_strategy" if strategy else "do_eval"
        beside = (
            f"not more than training's {trained}, which hold gradients too"
            if evaluated <= trained
            else f"more than training's {trained}: without gradients, but its logits may need more than the forecast"
        )
        sheet.warn(key, f"asks for evaluation, which is left out: {evaluated} sequences at once, {beside}")


def batches(sheet: Sheet) -> None:
    """What else changes batches, padding and kernels."""
    smaller = sheet.flag("auto_find_batch_size")
    if smaller:
        sheet.warn("auto_find_batch_size", "makes the micro-batch smaller when memory runs out; priced as it is said")
    elif smaller is not None:
        sheet.rest("auto_find_batch_size", _OFF)
    if sheet.get("liger_kernel_config") is not None:
        if sheet.flag("use_liger_kernel"):
            sheet.leave("liger_kernel_config")
        else:
            sheet.rest("liger_kernel_config", "only with use_liger_kernel")
    multiple, length = sheet.get("pad_to_multiple_of"), sheet.get("max_length")
    if multiple == "auto":
        sheet.rest("pad_to_multiple_of", "no padding on NVIDIA cards")
    elif multiple is not None:
        with sheet.reading("pad_to_multiple_of"):
            if isinstance(length, int) and length % whole(multiple) == 0:
                sheet.rest("pad_to_multiple_of", "it divides the length")
            else:
                sheet.leave("pad_to_multiple_of")
    _accelerator(sheet)


def _accelerator(sheet: Sheet) -> None:
    """`accelerator_config`: how batches are split, and when gradients are."""
    for name, value in sheet.table("accelerator_config").items():
        key = f"accelerator_config.{name}"
        inner = value.get("sync_each_batch") if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if name == "split_batches" and value:
            sheet.refuse(key, "per_device_train_batch_size counts the sequences of all GPUs", value)
        elif name == "gradient_accumulation_kwargs" and inner:
            sheet.leave(key)  # gradients are split in every micro-batch, which no path says
        else:
            sheet.rest(key)
