"""verl keys whose meaning depends on other keys, one small rule for each matter. Read in verl 0.9.1."""

from __future__ import annotations

from vramcast.readers.frameworks.trl.keys import names, one_of
from vramcast.readers.frameworks.verl.config import Config
from vramcast.readers.frameworks.verl.keys import ACTOR, CRITIC, DTYPES, FSDP, MODEL, REF, ROLLOUT, given
from vramcast.readers.frameworks.verl.limits import SHAPES
from vramcast.readers.frameworks.verl.work import replaced, sequences, whole

_VARIANTS = {
    **dict.fromkeys(("grpo", "grpo_vectorized", "grpo_passk"), "grpo"),
    **dict.fromkeys(("rloo", "rloo_vectorized"), "rloo"),
    **dict.fromkeys(("reinforce_plus_plus", "reinforce_plus_plus_baseline"), "reinforce_pp"),
}
_OPTIMIZERS: dict[str, tuple[str, str | None]] = {
    "torch.optim.AdamW": ("adamw", "foreach"),
    "torch.optim.Adam": ("adamw", "foreach"),
    "torch.optim.SGD": ("sgd", "foreach"),
    "bitsandbytes.optim.AdamW8bit": ("adamw_8bit", None),
    "bitsandbytes.optim.PagedAdamW8bit": ("paged_adamw_8bit", None),
    "bitsandbytes.optim.PagedAdamW": ("paged_adamw", None),
    "torchao.optim.AdamW8bit": ("adamw_8bit", None),
    "torchao.optim.AdamW4bit": ("adamw_4bit", None),
}
_CACHES: dict[str, str | None] = {
    **dict.fromkeys(("auto", "none"), None),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), "fp8"),
    "bfloat16": "bf16",
    "float16": "fp16",
}


def algorithm(config: Config) -> None:
    """`algorithm.adv_estimator` names the algorithm; gae, which is the default, trains a critic."""
    key = "algorithm.adv_estimator"
    if key in config.gaps:
        return
    if key not in config.content:
        config.assume("algorithm", "ppo", key, "gae")
        return
    with config.reading(key):
        estimator = str(given(config.get(key)))
        config.fact("algorithm", "ppo" if estimator == "gae" else "grpo", key)
        if estimator != "gae":
            _variant(config, key, estimator)


def _variant(config: Config, key: str, estimator: str) -> None:
    mode = f"{ACTOR}policy_loss.loss_mode"
    if config.get(mode) == "gspo":
        config.fact("grpo.variant", "gspo", mode)
        return
    config.unused(mode, "the loss is taken from the same log-probabilities")
    if estimator in _VARIANTS:
        config.fact("grpo.variant", _VARIANTS[estimator], key)
    else:
        config.warn(key, f"{estimator} is read as grpo: a group of responses and no critic")


def critic(config: Config) -> None:
    """A critic exists if it is enabled, or if nothing is said and the estimator is gae."""
    estimator = config.or_default("algorithm.adv_estimator")
    if config.get("critic.enable") is not None:
        config.fact("critic.kind", "model" if config.flag("critic.enable") else "none", "critic.enable")
    elif "algorithm.adv_estimator" in config.content and estimator == "gae":
        config.fact("critic.kind", "model", "algorithm.adv_estimator")
    elif estimator == "gae" and "algorithm.adv_estimator" not in config.gaps:
        config.assume("critic.kind", "model", "algorithm.adv_estimator", "gae")
    if config.has_critic:
        _critic_keys(config)


def _critic_keys(config: Config) -> None:
    for key, (path, convert) in CRITIC.items():
        if config.says(key):
            with config.reading(key):
                config.fact(path, convert(config.get(key)), key)
    rank = config.get("critic.model.lora_rank")
    if rank is not None:
        config.fact("critic.tuning", "lora" if rank else "full", "critic.model.lora_rank")
    if rank:
        config.fact("critic.lora.rank", rank, "critic.model.lora_rank")
    own, budget = "critic.use_dynamic_bsz", "critic.ppo_max_token_len_per_gpu"
    switch = own if own in config.content else f"{ACTOR}use_dynamic_bsz"
    if not config.flag(switch):
        config.unused(budget, f"only with {own}")
        config.unused("critic.forward_max_token_len_per_gpu", f"only with {own}")
        sequences(config, "critic.micro_batch", "critic.ppo_micro_batch_size")
        return
    replaced(config, "critic.ppo_micro_batch_size", budget)
    config.fact("critic.token_budget", config.or_default(budget), budget if config.says(budget) else switch)
    forward = "critic.forward_max_token_len_per_gpu"
    if config.says(forward):
        config.fact("critic.logprob.token_budget", config.get(forward), forward)


def cluster(config: Config) -> None:
    """`trainer.nnodes` machines with `trainer.n_gpus_per_node` GPUs each; FSDP inside groups of `fsdp_size`."""
    keys = ("trainer.n_gpus_per_node", "trainer.nnodes")
    gpus = None
    with config.reading(keys[1]):
        each, nodes = (whole(config.or_default(key)) for key in keys)
        gpus = each * nodes if not any(key in config.gaps for key in keys) else None
        if config.says(*keys):
            config.derive("gpus", each * nodes, keys, " * ".join(keys))
    own = f"{ROLLOUT}n_gpus_per_node"
    if config.get(f"{ROLLOUT}nnodes") in (None, 0) and own in config.content:
        config.unused(own, "only with rollout.nnodes")
    _groups(config, "shard_size", f"{FSDP}fsdp_size", gpus)
    key = f"{REF}fsdp_config.fsdp_size"
    if key in config.content and config.before("0.8.0"):
        config.unused(key, f"verl {config.version} gives the reference the groups of the actor")
    elif key in config.content:
        _groups(config, "reference.shard_size", key, gpus)
    elif any(fact.path == "shard_size" and fact.value for fact in config.facts) and not config.before("0.8.0") and gpus:
        config.assume("reference.shard_size", gpus, key, "-1: all ranks")


def _groups(config: Config, path: str, key: str, gpus: int | None) -> None:
    """One copy of the weights in every group; -1, or as many ranks as there are: one group."""
    if not config.says(key):
        return
    with config.reading(key):
        size = config.get(key)
        if isinstance(size, bool) or not isinstance(size, int) or size == 0:
            raise ValueError(f"{size!r} is not a number of GPUs, or -1")
        if size < 0 or (gpus is not None and size >= gpus):
            config.fact(path, gpus if path.startswith("reference.") and gpus else None, key)
        else:
            config.fact(path, size, key)


def precision(config: Config) -> None:
    """The dtype of the matrix products: the sharding's mixed precision; up to 0.7 also an older key."""
    key, old = f"{FSDP}mixed_precision.param_dtype", f"{FSDP}dtype"
    if old in config.content and not config.before("0.8.0"):
        config.unused(old, f"verl {config.version} takes the dtype of {key}")
    elif not config.says(key) and config.says(old):
        key = old
    if config.says(key):
        with config.reading(key):
            config.fact("compute_dtype", one_of(DTYPES)(config.get(key)), key)


def layout(config: Config) -> None:
    """Offload by FSDP2's policy, which keeps everything on the host, what one gathered unit holds, and Ulysses."""
    policy, strategy = f"{FSDP}offload_policy", config.or_default(f"{ACTOR}strategy")
    if config.flag(policy) and strategy == "fsdp2":
        for part in ("weights", "gradients", "optimizer"):
            config.instead(f"offload.{part}", "cpu", policy)
        for key in (f"{FSDP}param_offload", f"{FSDP}optimizer_offload"):
            config.unused(key, f"{policy} keeps everything on the host")
    elif policy in config.content:
        config.unused(policy, "only with FSDP 2" if config.flag(policy) else "nothing is kept on the host by it")
    least, off = f"{FSDP}wrap_policy.min_num_params", f"{FSDP}wrap_policy.disable"
    if config.says(off) or config.says(least):
        size = bool(config.get(least))
        wrap, key = ("none", off) if config.flag(off) else ("size" if size else "block", least if size else off)
        config.fact("wrap", wrap, key if config.says(key) else least)
    own = f"{FSDP}strategy"
    if own in config.content:
        config.unused(own, f"{ACTOR}strategy = {strategy} is written over it")
    _ulysses(config)
    other = f"{REF}strategy"
    if other in config.content and not config.is_default(other) and config.get(other) != strategy:
        config.refuse_because(other, "runs the reference under another sharding than the actor")


def _ulysses(config: Config) -> None:
    """Both of the actor's keys mean the same; the reference follows it."""
    first, second = f"{ACTOR}ulysses_sequence_parallel_size", f"{FSDP}ulysses_sequence_parallel_size"
    ranks = config.or_default(first)
    if config.says(second):
        if first not in config.content or ranks == 1:
            ranks = config.get(second)
            config.instead("ulysses", ranks, second)
        elif config.get(second) != ranks:
            config.unused(second, f"{first} = {ranks} is written over it")
    for key in (f"{REF}ulysses_sequence_parallel_size", f"{REF}fsdp_config.ulysses_sequence_parallel_size"):
        if key in config.content and not config.is_default(key) and config.get(key) != ranks:
            config.refuse_because(key, "cuts the reference's sequences another way than the actor's")
        config.unused(key, "the reference follows the actor")


def optimizer(config: Config) -> None:
    """A class, and the module it comes from; torch's run in their foreach form unless told otherwise."""
    keys = [f"{ACTOR}optim.optimizer", f"{ACTOR}optim.optimizer_impl"]
    options = f"{ACTOR}optim.override_optimizer_config."
    chosen = next((name for name in ("fused", "foreach") if config.flag(f"{options}{name}")), None)
    loops = chosen is None and config.flag(f"{options}foreach") is False
    for name in ("fused", "foreach"):
        if f"{options}{name}" in config.content and (name != chosen) and not (loops and name == "foreach"):
            config.unused(f"{options}{name}", "torch's own choice is foreach")
    if chosen or loops:
        config.fact("optimizer.impl", chosen or "loop", f"{options}{chosen or 'foreach'}")
    if not config.says(*keys):
        return
    name, module = (config.get(key) if key in config.content else config.default(key) for key in keys)
    key = keys[0] if config.says(keys[0]) else keys[1]
    with config.reading(key):
        kind, implementation = one_of(_OPTIMIZERS)(f"{module or 'torch.optim'}.{name or 'AdamW'}")
        config.fact("optimizer", kind, key)
        if implementation and not chosen and not loops:
            config.fact("optimizer.impl", implementation, key)


def attention(config: Config) -> None:
    """`attn_implementation` of the model's overrides; with sdpa, or null, torch chooses the kernel."""
    key = f"{MODEL}override_config.attn_implementation"
    if config.says(key):
        text = str(config.get(key)).lower()
        with config.reading(key):
            kernel = "flash" if "flash" in text else one_of({"eager": "eager", "sdpa": None, "none": None})(text)
            config.fact("attention", kernel, key)
    for inner in [each for each in config.content if each.startswith(f"{MODEL}override_config.") and each != key]:
        name, value = inner.removeprefix(f"{MODEL}override_config.").removeprefix("model_config."), config.get(inner)
        if any(part in SHAPES for part in name.split(".")):
            config.refuse_because(inner, "makes another model than its config.json")
        elif name.endswith(("dropout", "pdrop", "drop")) and value not in (None, 0, False):
            config.refuse_because(inner, "keeps a mask for every dropout")


def engine(config: Config) -> None:
    """What is passed through to vLLM, and the backend of the fused head."""
    key = f"{ROLLOUT}engine_kwargs.vllm.kv_cache_dtype"
    if config.says(key):
        with config.reading(key):
            config.fact("engine.kv_dtype", one_of(_CACHES)(str(config.get(key)).lower()), key)
    backend = f"{MODEL}fused_kernel_options.impl_backend"
    if backend in config.content and not config.flag(f"{MODEL}use_fused_kernels"):
        config.unused(backend, "only with use_fused_kernels")
    elif config.get(backend) not in (None, "torch"):
        config.refuse_because(backend, "makes the fused head with Triton's kernels")


def adapters(config: Config) -> None:
    """LoRA by its rank; adapters are pushed to an engine that keeps its base weights, unless they are merged."""
    key, merge, targets = f"{MODEL}lora_rank", f"{MODEL}lora.merge", f"{MODEL}target_modules"
    rank = config.get(key)
    config.unused(f"{MODEL}lora.rank", f"read by Megatron only: FSDP reads {key}")
    if config.says(key):
        config.fact("tuning", "lora" if rank else "full", key)
    if rank:
        config.fact("lora.rank", rank, key)
        if config.says(targets):
            config.fact("lora.targets", names(config.get(targets)), targets)
    elif key not in config.gaps:
        for other in (targets, merge, f"{MODEL}exclude_modules", f"{MODEL}target_parameters"):
            config.unused(other, "there are no adapters")
    sleeps = config.flag(f"{ROLLOUT}free_cache_engine")
    if sleeps is False:
        config.fact("engine.sleep", "none", f"{ROLLOUT}free_cache_engine")
    elif rank and config.says(merge):
        config.fact("engine.sleep", "2" if config.flag(merge) else "1", merge)
    elif sleeps:
        config.fact("engine.sleep", "1" if rank else "2", f"{ROLLOUT}free_cache_engine")


def roles(config: Config) -> None:
    """The reference by the KL terms; under FSDP it waits on the host whatever its switch says. The reward."""
    keys = (f"{ACTOR}use_kl_loss", "algorithm.use_kl_in_reward")
    if config.says(*keys):
        on = next((key for key in keys if config.flag(key)), "")
        kind = ("adapter_off" if config.get(f"{MODEL}lora_rank") else "copy") if on else "none"
        config.fact("reference.kind", kind, on or next(key for key in keys if config.says(key)))
    config.unused(f"{REF}fsdp_config.param_offload", "the reference rests on the host under FSDP, whatever it says")
    switch, path = "reward.reward_model.enable", "reward.reward_model.model_path"
    model = config.flag(switch)
    if model is not None:
        config.fact("reward.kind", "model" if model else "rules", switch)
    if model and config.get(path):
        config.fact("reward.model", config.get(path), path)
    elif path in config.content:
        config.unused(path, "there is no reward model")


def matters(config: Config, path: str) -> bool:
    """Whether a path that has no known value is used at all."""
    dynamic = bool(config.flag(f"{ACTOR}use_dynamic_bsz"))
    if path.startswith("critic.") and path != "critic.kind":
        return config.has_critic
    if path.startswith("reference.logprob"):
        kinds = [fact.value for fact in config.facts if fact.path == "reference.kind"]
        return bool(kinds) and kinds[0] != "none" and path.endswith("token_budget") == dynamic
    if path.endswith(("token_budget", "micro_batch")):
        return path.endswith("token_budget") == dynamic
    return True
