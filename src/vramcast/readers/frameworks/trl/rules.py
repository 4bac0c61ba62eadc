"""TRL keys whose meaning depends on other keys, one small rule for each matter. Read in trl 1.16.0."""

from __future__ import annotations

from typing import Any

from vramcast.readers.config import ConfigReader
from vramcast.readers.frameworks.trl.keys import DTYPES, OPTIMIZERS, flag, number, one_of, whole
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


def environment(config: ConfigReader) -> None:
    """`env`: variables that TRL exports before it starts."""
    for name, value in config.table("env").items():
        key = f"env.{name}"
        cards = [card for card in str(value).split(",") if card.strip() not in ("", "-1")]
        if name in _ALLOCATOR:
            config.fact("allocator", str(value), key)
        elif name == "CUDA_VISIBLE_DEVICES" and cards:
            config.fact("gpus", len(cards), key)
        elif name.startswith(_QUIET):
            config.rest(key)
        else:
            config.leave(key)


def model_arguments(config: ConfigReader) -> None:
    """`model_init_kwargs` is merged over the arguments that trl's scripts make from dtype and attn_implementation."""
    for name, value in config.table("model_init_kwargs").items():
        written = f"model_init_kwargs.{name}"
        key = "dtype" if name == "torch_dtype" else name
        if key in ("dtype", "attn_implementation"):
            if key in config.said:
                config.rest(key, f"{written} counts")
            config.take_as(written, key, value)
        elif name in ("use_cache", "trust_remote_code", "revision"):
            config.rest(written)
        elif name in ("device_map", "quantization_config", "max_memory", "tp_plan"):
            config.refuse(written, "where the model is put, or how it is packed", value)
        else:
            config.leave(written)


def precision(config: ConfigReader) -> None:
    """Weights by dtype; autocast and its dtype by bf16 and fp16."""
    dtype = config.get("dtype")
    if dtype == "auto" or (dtype is None and "dtype" in config.content):
        config.warn("dtype", "means the checkpoint's dtype, which is taken to be bf16")
        config.fact("weights_dtype", "bf16", "dtype")
    elif dtype is not None:
        with config.reading("dtype"):
            if not isinstance(dtype, str) or dtype.removeprefix("torch.") not in DTYPES:
                raise ValueError(f"{dtype!r} is none of TRL's values: auto, {', '.join(DTYPES)}")
            config.fact("weights_dtype", DTYPES[dtype.removeprefix("torch.")], "dtype")
    bf16, fp16 = config.flag("bf16"), config.flag("fp16")
    if bf16 and fp16:
        config.mistakes.add("bf16 and fp16 exclude each other", **{"from": config.where("fp16")})
        config.settled.update(("bf16", "fp16"))
    elif bf16 or fp16:
        config.fact("autocast", True, "bf16" if bf16 else "fp16")
        config.fact("compute_dtype", "bf16" if bf16 else "fp16", "bf16" if bf16 else "fp16")
    elif bf16 is False:  # left out, or null, it is switched on
        config.fact("autocast", False, "bf16")
    for key, on in (("bf16", bf16), ("fp16", fp16)):
        if on is False and key not in config.settled:
            config.rest(key, _OFF)


def adapters(config: ConfigReader) -> None:
    """Tuning and the quantised base."""
    peft, four, eight = config.flag("use_peft"), config.flag("load_in_4bit"), config.flag("load_in_8bit")
    if peft is not None:
        config.fact("tuning", "full" if not peft else "qlora" if four or eight else "lora", "use_peft")
    if four and eight:
        why = {"from": config.where("load_in_8bit")}
        config.mistakes.add("load_in_4bit and load_in_8bit exclude each other", **why)
        config.settled.update(("load_in_4bit", "load_in_8bit"))
    elif four:
        _four_bit(config)
    elif eight:
        config.fact("quant.kind", "int8", "load_in_8bit")
    if (four or eight) and not peft:
        key = "load_in_4bit" if four else "load_in_8bit"
        config.warn(key, "without use_peft: TRL does not train a quantised model")
    for key in ("load_in_4bit", "load_in_8bit"):
        if config.get(key) is not None and key not in config.settled:
            config.rest(key, _OFF if not config.flag(key) else "")
    for key in ("bnb_4bit_quant_type", "bnb_4bit_quant_storage", "use_bnb_nested_quant"):
        if config.get(key) is not None and not four:
            config.rest(key, "only with load_in_4bit")


def _four_bit(config: ConfigReader) -> None:
    config.settled.add("load_in_4bit")
    key = "bnb_4bit_quant_type" if config.get("bnb_4bit_quant_type") else "load_in_4bit"
    config.fact("quant.kind", config.get("bnb_4bit_quant_type") or "nf4", key)
    if config.flag("use_bnb_nested_quant") is not None:
        config.fact("quant.double", config.flag("use_bnb_nested_quant"), "use_bnb_nested_quant")
    storage = config.get("bnb_4bit_quant_storage")
    if storage is not None:
        with config.reading("bnb_4bit_quant_storage"):
            kind = one_of({**DTYPES, "uint8": "int8"})(storage)
            config.fact("quant.storage", kind, "bnb_4bit_quant_storage")


def lengths(config: ConfigReader) -> None:
    """The longest sequence, and what shorter ones are padded to. `model_max_length` and `block_size` are what
    scripts around the plain Trainer call it."""
    if "max_length" in config.content and config.get("max_length") is None:
        config.needs("seq_len", "max_length", "is null: no length limit")
    elif "max_length" in config.content:
        config.fact("seq_len", config.get("max_length"), "max_length")
    for key in ("model_max_length", "block_size"):
        if config.get(key) is not None and "max_length" in config.content:
            config.rest(key, f"{config.label('max_length')} counts")
        elif config.get(key) is not None:
            config.fact("seq_len", config.get(key), key)
    free, packing, strategy = config.flag("padding_free"), config.flag("packing"), config.get("packing_strategy")
    if free:
        config.fact("padding", "free", "padding_free")
    elif packing and strategy == "wrapped":
        config.fact("padding", "longest", "packing_strategy")
    elif free is False:
        config.rest("padding_free", _OFF)
    if strategy is not None and "packing_strategy" not in config.settled:
        if strategy in ("bfd", "bfd_split", "bfd-requeue", "ffd", "wrapped"):
            why = "fills the length without padding" if packing or free else "only with packing"
            config.rest("packing_strategy", why)
        else:
            config.leave("packing_strategy")


def optimizer(config: ConfigReader) -> None:
    """`optim` names the optimizer and how torch runs it."""
    if config.get("optim") is None:
        return
    with config.reading("optim"):
        name, implementation = one_of(OPTIMIZERS)(config.get("optim"))
        config.fact("optimizer", name, "optim")
        if implementation:
            config.fact("optimizer.impl", implementation, "optim")


def recompute(config: ConfigReader) -> None:
    """`activation_checkpointing`, or its deprecated alias `gradient_checkpointing`, with its options."""
    named = ("activation_checkpointing", "gradient_checkpointing")
    key = next((key for key in named if config.get(key) is not None), "")
    on = config.flag(key) if key else None
    options = next((f"{key}_kwargs" for key in named if config.get(f"{key}_kwargs") is not None), "")
    for name, value in config.table(options).items():
        _option(config, f"{options}.{name}", name, value, on)
    if config.get("gradient_checkpointing_use_reentrant") is not None:  # of trl's scripts
        with config.reading("gradient_checkpointing_use_reentrant"):
            reentrant = flag(config.get("gradient_checkpointing_use_reentrant"))
            config.fact("recompute.reentrant", reentrant, "gradient_checkpointing_use_reentrant")
    if on is not None:
        config.fact("recompute", "full" if on else "none", key)
    for name in named:
        for other, counts in ((name, key), (f"{name}_kwargs", options)):
            if config.get(other) is not None and counts != other:
                config.rest(other, f"{counts} counts")


def _option(config: ConfigReader, key: str, name: str, value: Any, on: bool | None) -> None:
    if value is None:
        config.rest(key, "null: as if it were left out")
    elif name == "use_reentrant":
        config.fact("recompute.reentrant", value, key)
    elif name == "every_n_layers":
        config.fact("recompute.every", value, key)
    elif name in _RECOMPUTE:
        with config.reading(key):
            if flag(value) and on is not False:
                config.fact("recompute", _RECOMPUTE[name], key)
            else:
                config.rest(key, _OFF if not flag(value) else "nothing is recomputed")
    else:
        config.leave(key)


def loss(config: ConfigReader, kind: str) -> None:
    """Label smoothing needs the full logits in SFT; in GRPO `loss_type` names the variant."""
    smoothing, named = config.get("label_smoothing_factor"), config.get("loss_type")
    if smoothing is not None:
        with config.reading("label_smoothing_factor"):
            if number(smoothing) > 0 and kind == "sft" and named != "dft":
                config.fact("loss", "full", "label_smoothing_factor")
            else:
                config.rest("label_smoothing_factor", _OFF if not number(smoothing) else "not in this trainer's loss")
    if named is None:
        return
    if not isinstance(named, str):
        config.leave("loss_type")
    elif kind == "grpo" and named in _VARIANTS:
        if all(fact.path != "grpo.variant" for fact in config.facts):
            config.fact("grpo.variant", named, "loss_type")
    elif kind == "grpo" and named in _REDUCTIONS:
        config.rest("loss_type", "it weighs the same log-probabilities")
    elif kind == "sft" and named in ("nll", "chunked_nll"):
        config.rest("loss_type", "the version's own loss: since trl 1.15 both names are one")
    elif kind in ("dpo", "kto"):
        config.rest("loss_type", "it weighs the same log-probabilities")
    else:
        config.leave("loss_type")


def roles(config: ConfigReader, kind: str) -> None:
    """The reference of GRPO by beta, that of DPO by whether its log-probs are made before; the reward."""
    beta = config.get("beta")
    if beta is not None:
        with config.reading("beta"):
            with_reference = "adapter_off" if config.flag("use_peft") else "copy"
            if kind == "grpo":
                config.fact("reference.kind", with_reference if number(beta) else "none", "beta")
            else:
                number(beta)
                config.rest("beta", "how much the reference weighs")
    if config.flag("precompute_ref_log_probs"):
        config.fact("reference.kind", "precomputed", "precompute_ref_log_probs")
    elif config.get("precompute_ref_log_probs") is not None:
        config.rest("precompute_ref_log_probs", _OFF)
    if config.get("reward_model_name_or_path"):
        config.fact("reward.kind", "model", "reward_model_name_or_path")
        config.fact("reward.model", config.get("reward_model_name_or_path"), "reward_model_name_or_path")
        if config.get("reward_funcs"):
            config.rest("reward_funcs", "functions beside the model")
    elif config.get("reward_funcs"):
        config.fact("reward.kind", "rules", "reward_funcs")


def generation(config: ConfigReader, trainer: str) -> None:
    """`generation_batch_size` counts sequences over all GPUs; ours counts prompts."""
    key = "generation_batch_size"
    if config.get(key) is not None:
        with config.reading(key):
            sequences, group = whole(config.get(key)), whole(config.get("num_generations") or _GROUPS.get(trainer, 8))
            if sequences % group:
                raise ValueError(f"{sequences} is not divisible by num_generations = {group}")
            config.fact("prompts_per_step", sequences // group, key)
    _steps(config, trainer)
    if config.get("num_iterations") is not None:
        with config.reading("num_iterations"):
            whole(config.get("num_iterations"))
            config.rest("num_iterations", "the same responses are learned from again, one micro-batch at a time")


def _steps(config: ConfigReader, trainer: str) -> None:
    """How many micro-batches of responses are generated at once: those of an optimizer step, unless this says it."""
    key = "steps_per_generation"
    if config.get(key) is None:
        return
    with config.reading(key):
        steps, accumulation = whole(config.get(key)), whole(config.get("gradient_accumulation_steps") or 1)
        if config.get("generation_batch_size") is not None:
            raise ValueError("generation_batch_size says it already: TRL refuses both")
        micro = whole(config.get("per_device_train_batch_size") or _BATCH)
        group = whole(config.get("num_generations") or _GROUPS.get(trainer, 8))
        if steps == accumulation:
            config.rest(key, "as many as gradient_accumulation_steps, the default")
        elif config.get("use_vllm") and config.get("vllm_mode") == "server" and micro * accumulation % group == 0:
            config.rest(key, "the server generates")
        else:
            text = f"generates {micro} × {steps} responses a GPU at once: this × GPUs / num_generations are the prompts"
            config.needs("prompts_per_step", key, text)


def engine(config: ConfigReader) -> None:
    """What generates beside `use_vllm` and its sizes."""
    vllm = bool(config.flag("use_vllm"))
    cache, model, dtype = (config.get(key) for key in ("cache_implementation", "vllm_model_impl", "vllm_dtype"))
    if cache is not None and (vllm or cache == "dynamic"):
        config.rest("cache_implementation", "vLLM generates" if vllm else "the default")
    elif cache is not None:
        config.refuse("cache_implementation", "the cache of Transformers' own generation")
    if model is not None and (model == "vllm" or not vllm):
        config.rest("vllm_model_impl", "only with use_vllm" if not vllm else "the default")
    elif model is not None:
        config.refuse("vllm_model_impl", "vLLM runs Transformers' code")
    if dtype == "auto":
        config.rest("vllm_dtype", "the default")
    elif dtype is not None:
        with config.reading("vllm_dtype"):
            config.fact("engine.dtype", one_of(DTYPES)(dtype), "vllm_dtype")
    device = config.get("vllm_device")
    if device == "auto" or (device is not None and not vllm):
        config.rest("vllm_device", "only with use_vllm" if not vllm else "the default")
    elif device is not None:
        config.fact("engine.process", "trainer" if device in ("cuda", "cuda:0") else "server", "vllm_device")
    whole_model = config.flag("ds3_gather_for_generation")
    if whole_model is not None:
        config.rest("ds3_gather_for_generation", "only with ZeRO-3")
    corrects = config.flag("vllm_importance_sampling_correction")
    if corrects is not None:
        config.rest(
            "vllm_importance_sampling_correction",
            "the default" if corrects else "the pass that it leaves out stays below the learning step",
        )


def evaluation(config: ConfigReader) -> None:
    """Evaluation is left out, and said to be; YAML reads the unquoted word `no` as false."""
    size, strategy = config.get("per_device_eval_batch_size"), config.get("eval_strategy")
    asked = config.flag("do_eval")
    runs = bool(asked) or strategy not in (None, False, "no")
    for key in ("eval_strategy", "do_eval", "per_device_eval_batch_size"):
        if config.get(key) is not None:
            config.rest(key, "evaluation is left out" if runs else "the run does not evaluate")
    if not runs:
        return
    with config.reading("per_device_eval_batch_size"):
        evaluated = whole(size if size is not None else _BATCH)
        trained = whole(config.get("per_device_train_batch_size") or _BATCH)
        key = "per_device_eval_batch_size" if size is not None else "eval_strategy" if strategy else "do_eval"
        beside = (
            f"not more than training's {trained}, which hold gradients too"
            if evaluated <= trained
            else f"more than training's {trained}: without gradients, but its logits may need more than the forecast"
        )
        config.warn(key, f"asks for evaluation, which is left out: {evaluated} sequences at once, {beside}")


def batches(config: ConfigReader) -> None:
    """What else changes batches, padding and kernels."""
    smaller = config.flag("auto_find_batch_size")
    if smaller:
        config.warn("auto_find_batch_size", "makes the micro-batch smaller when memory runs out; priced as it is said")
    elif smaller is not None:
        config.rest("auto_find_batch_size", _OFF)
    if config.get("liger_kernel_config") is not None:
        if config.flag("use_liger_kernel"):
            config.leave("liger_kernel_config")
        else:
            config.rest("liger_kernel_config", "only with use_liger_kernel")
    multiple, length = config.get("pad_to_multiple_of"), config.get("max_length")
    if multiple == "auto":
        config.rest("pad_to_multiple_of", "no padding on NVIDIA cards")
    elif multiple is not None:
        with config.reading("pad_to_multiple_of"):
            if isinstance(length, int) and length % whole(multiple) == 0:
                config.rest("pad_to_multiple_of", "it divides the length")
            else:
                config.leave("pad_to_multiple_of")
    _accelerator(config)


def _accelerator(config: ConfigReader) -> None:
    """`accelerator_config`: how batches are split, and when gradients are."""
    for name, value in config.table("accelerator_config").items():
        key = f"accelerator_config.{name}"
        inner = value.get("sync_each_batch") if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if name == "split_batches" and value:
            config.refuse(key, "per_device_train_batch_size counts the sequences of all GPUs", value)
        elif name == "gradient_accumulation_kwargs" and inner:
            config.leave(key)  # gradients are split in every micro-batch, which no path says
        else:
            config.rest(key)
