"""TRL keys whose meaning depends on other keys, one small rule for each matter. Read in trl 1.16.0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramcast.readers.config import ConfigReader
from vramcast.readers.environment import variable_fact
from vramcast.readers.framework import Rule, choose
from vramcast.readers.frameworks.trl.keys import DTYPES, known
from vramcast.readers.frameworks.trl.layout import layout
from vramcast.readers.frameworks.trl.responses import BATCH, engine, generation
from vramcast.readers.keys import FLAG, Key, flag, number, one_of, whole
from vramcast.types.paths import PATHS

_QUIET = ("WANDB_", "HF_", "TOKENIZERS_", "TRANSFORMERS_", "OMP_", "MKL_", "PYTHON", "TRACKIO_", "LOG")
"""Beginnings of variables that change no memory on the card."""
_VARIANTS = PATHS["grpo.variant"].choices
_RECOMPUTE = {"selective": "selective", "offload": "offloaded"}
_REDUCTIONS = frozenset("bnpo cispo sapo luspo vespo".split())
"""Losses of GRPO that weigh the same log-probabilities otherwise."""
_OFF = "off"


def environment(config: ConfigReader) -> None:
    """`env`: variables that TRL exports before it starts."""
    for name, value in config.table("env").items():
        key = f"env.{name}"
        if found := variable_fact(name, str(value)):
            config.fact(*found, key)
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
    config.rest_of(_OFF, *(key for key, on in (("bf16", bf16), ("fp16", fp16)) if on is False))


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
        config.settled.add("load_in_4bit")
        key = "bnb_4bit_quant_type" if config.get("bnb_4bit_quant_type") else "load_in_4bit"
        config.fact("quant.kind", config.get("bnb_4bit_quant_type") or "nf4", key)
    elif eight:
        config.fact("quant.kind", "int8", "load_in_8bit")
    if (four or eight) and not peft:
        key = "load_in_4bit" if four else "load_in_8bit"
        config.warn(key, "without use_peft: TRL does not train a quantised model")
    config.rest_of(_OFF, "load_in_4bit", "load_in_8bit")
    if not four:
        config.rest_of("only with load_in_4bit", "bnb_4bit_quant_type")


def lengths(config: ConfigReader) -> None:
    """The longest sequence, and what shorter ones are padded to. `model_max_length` and `block_size` are what
    scripts around the plain Trainer call it."""
    if "max_length" in config.content and config.get("max_length") is None:
        config.needs("seq_len", "max_length", "is null: no length limit")
    elif "max_length" in config.content:
        config.fact("seq_len", config.get("max_length"), "max_length")
    if "max_length" in config.content:
        config.rest_of(f"{config.label('max_length')} counts", "model_max_length", "block_size")
    else:
        config.keys((Key("model_max_length", "seq_len"), Key("block_size", "seq_len")))
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
        name, implementation = one_of(known().more["optimizers"])(config.get("optim"))
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
    config.keys((Key("gradient_checkpointing_use_reentrant", "recompute.reentrant", FLAG),))  # of trl's scripts
    if on is not None:
        config.fact("recompute", "full" if on else "none", key)
    for name in named:
        for other, counts in ((name, key), (f"{name}_kwargs", options)):
            if counts != other:
                config.rest_of(f"{counts} counts", other)


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


def _kind(config: ConfigReader) -> str:
    """The trainer whose loss it is."""
    return {"rloo": "grpo", "pretrain": "sft"}.get(config.trainer, config.trainer)


def loss(config: ConfigReader) -> None:
    """Label smoothing needs the full logits in SFT; in GRPO `loss_type` names the variant."""
    kind = _kind(config)
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


def roles(config: ConfigReader) -> None:
    """The reference of GRPO by beta, that of DPO by whether its log-probs are made before; the reward."""
    kind = _kind(config)
    beta = config.get("beta")
    if beta is not None:
        with config.reading("beta"):
            with_reference = "adapter_off" if config.flag("use_peft") else "copy"
            weighs = bool(number(beta))
            if kind == "grpo":
                config.fact("reference.kind", with_reference if weighs else "none", "beta")
            config.rest_of("how much the reference weighs", "beta")
    if config.flag("precompute_ref_log_probs"):
        config.fact("reference.kind", "precomputed", "precompute_ref_log_probs")
    config.rest_of(_OFF, "precompute_ref_log_probs")
    if config.get("reward_model_name_or_path"):
        config.fact("reward.kind", "model", "reward_model_name_or_path")
        config.fact("reward.model", config.get("reward_model_name_or_path"), "reward_model_name_or_path")
        if config.get("reward_funcs"):
            config.rest("reward_funcs", "functions beside the model")
    elif config.get("reward_funcs"):
        config.fact("reward.kind", "rules", "reward_funcs")


def evaluation(config: ConfigReader) -> None:
    """Evaluation is left out, and said to be; YAML reads the unquoted word `no` as false."""
    size, strategy = config.get("per_device_eval_batch_size"), config.get("eval_strategy")
    asked = config.flag("do_eval")
    runs = bool(asked) or strategy not in (None, False, "no")
    why = "evaluation is left out" if runs else "the run does not evaluate"
    config.rest_of(why, "eval_strategy", "do_eval", "per_device_eval_batch_size")
    if not runs:
        return
    with config.reading("per_device_eval_batch_size"):
        evaluated = whole(size if size is not None else BATCH)
        trained = whole(config.get("per_device_train_batch_size") or BATCH)
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
    config.rest_of(_OFF, "auto_find_batch_size")
    if config.get("liger_kernel_config") is not None and config.flag("use_liger_kernel"):
        config.leave("liger_kernel_config")
    config.rest_of("only with use_liger_kernel", "liger_kernel_config")
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


def _optimizer(ours: Any) -> dict[str, Any]:
    """Of several names for one optimizer the first, but for AdamW the one that needs no second copy."""
    names = {kind: theirs for theirs, (kind, _) in reversed(known().more["optimizers"].items())}
    return {"optim": "adamw_torch_fused" if ours == "adamw" else names[ours]} if ours in names else {}


_SWITCHES = ("gradient_checkpointing", "gradient_checkpointing_kwargs")


def _option_of(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {_SWITCHES[1]: {name: value}}


FIRST = (Rule(model_arguments, {"model_init_kwargs": ""}),)
RULES = (
    Rule(layout, {
        "fsdp": "shard", "deepspeed": "shard", "fsdp_config": "", "parallelism_config": "",
        "fsdp_transformer_layer_cls_to_wrap": "", "fsdp_min_num_params": "",
    }),
    Rule(environment, {"env": ""}, {"allocator": lambda text: {"env": {"PYTORCH_ALLOC_CONF": text}}}),
    Rule(precision, {"dtype": "weights_dtype", "bf16": "compute_dtype", "fp16": ""}, {
        "weights_dtype": choose({ours: {"dtype": theirs} for theirs, ours in DTYPES.items()}),
        "autocast": choose({True: {"bf16": True}, False: {"bf16": False, "fp16": False}}),
        "compute_dtype": choose({"bf16": {"bf16": True}, "fp16": {"bf16": False, "fp16": True}}),
    }),
    Rule(adapters, {"use_peft": "tuning", "load_in_4bit": "", "load_in_8bit": "", "bnb_4bit_quant_type": ""}, {
        "tuning": choose({
            "full": {"use_peft": False}, "lora": {"use_peft": True}, "qlora": {"use_peft": True, "load_in_4bit": True},
        }),
        "quant.kind": choose({
            **{kind: {"load_in_4bit": True, "bnb_4bit_quant_type": kind} for kind in ("nf4", "fp4")},
            "int8": {"load_in_8bit": True},
            "none": {"load_in_4bit": False, "load_in_8bit": False},
        }),
    }),
    Rule(lengths, {
        "max_length": "seq_len", "model_max_length": "seq_len", "block_size": "", "padding_free": "",
        "packing_strategy": "",
    }, {
        "seq_len": lambda length: {"max_length": length},
        "padding": choose({"free": {"padding_free": True}, "longest": {"padding_free": False}}),
    }),
    Rule(optimizer, {"optim": "optimizer"}, {
        "optimizer": _optimizer,
        "optimizer.impl": choose({"fused": {"optim": "adamw_torch_fused"}, "foreach": {"optim": "adamw_torch"}}),
    }),
    Rule(recompute, {
        "gradient_checkpointing": "recompute", "gradient_checkpointing_kwargs": "", "activation_checkpointing": "",
        "activation_checkpointing_kwargs": "", "gradient_checkpointing_use_reentrant": "",
    }, {
        "recompute": choose({
            "none": {_SWITCHES[0]: False}, "full": {_SWITCHES[0]: True},
            "selective": {_SWITCHES[0]: True, _SWITCHES[1]: {"selective": True}},
            "offloaded": {_SWITCHES[0]: True, _SWITCHES[1]: {"offload": True}},
        }),
        "recompute.every": _option_of("every_n_layers"),
        "recompute.reentrant": _option_of("use_reentrant"),
    }),
    Rule(engine, dict.fromkeys((
        "cache_implementation", "vllm_model_impl", "vllm_dtype", "vllm_device", "ds3_gather_for_generation",
        "vllm_importance_sampling_correction",
    ), "")),
    Rule(evaluation, dict.fromkeys(("per_device_eval_batch_size", "eval_strategy", "do_eval"), "")),
    Rule(batches, dict.fromkeys((
        "auto_find_batch_size", "liger_kernel_config", "pad_to_multiple_of", "accelerator_config"
    ), "")),
    Rule(generation, {
        "generation_batch_size": "prompts_per_step", "steps_per_generation": "prompts_per_step", "num_iterations": "",
    }),
    Rule(loss, {"loss_type": "", "label_smoothing_factor": ""}),
    Rule(roles, {
        "beta": "reference.kind", "precompute_ref_log_probs": "", "reward_model_name_or_path": "", "reward_funcs": "",
    }, {
        "reference.kind": choose({"none": {"beta": 0.0}, "precomputed": {"precompute_ref_log_probs": True}}),
    }),
)  # fmt: skip
"""In the order in which they are read, with the way back."""
