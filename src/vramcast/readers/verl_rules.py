"""verl keys whose meaning depends on other keys, one small rule for each matter. Read in verl 0.9.1."""

from __future__ import annotations

from typing import Any

from vramcast.readers.document import Document
from vramcast.readers.shell_words import Gap
from vramcast.readers.trl_keys import names, number, one_of
from vramcast.readers.trl_sheet import Sheet
from vramcast.readers.verl_keys import ACTOR, CRITIC, DEFAULTS, DTYPES, FSDP, MODEL, REF, ROLLOUT, RULED
from vramcast.types.job import Fact, Origin, check_value

VERSION = "0.9.1"
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


class Config(Sheet):
    """The keys of a verl configuration; some have a value that is not known."""

    def __init__(self, document: Document, name: str, gaps: dict[str, tuple[Gap, ...]]) -> None:
        super().__init__(document, name)
        self.gaps = gaps

    def says(self, *keys: str) -> bool:
        """Whether one of the keys is given, and none of them has an unknown value."""
        return not any(key in self.gaps for key in keys) and any(self.get(key) is not None for key in keys)

    def or_default(self, key: str) -> Any:
        value = self.get(key)
        return DEFAULTS[key] if value is None else value

    def derive(self, path: str, value: Any, keys: tuple[str, ...], text: str) -> None:
        """A fact from several keys, of which those that are left out count with their default."""
        given = next(key for key in keys if self.get(key) is not None)
        with self.mistakes.collect():
            origin = Origin(self.where(given), text)
            self.facts.append(Fact(path, check_value(path, value, origin), origin))

    def assume(self, path: str, value: Any, key: str, default: str) -> None:
        """A fact that follows from a key that is left out."""
        self.facts.append(Fact(path, value, Origin(f"verl {VERSION} default ({key} {default})")))


def algorithm(config: Config) -> None:
    """`algorithm.adv_estimator` names the algorithm; gae, which is the default, trains a critic."""
    key = "algorithm.adv_estimator"
    if key in config.gaps:
        return
    estimator = config.get(key)
    if estimator is None:
        config.assume("algorithm", "ppo", key, "gae")
    else:
        config.fact("algorithm", "ppo" if estimator == "gae" else "grpo", key)
    if estimator not in (None, "gae"):
        _variant(config, key, str(estimator))


def _variant(config: Config, key: str, estimator: str) -> None:
    if config.get(f"{ACTOR}policy_loss.loss_mode") == "gspo":
        config.fact("grpo.variant", "gspo", f"{ACTOR}policy_loss.loss_mode")
    elif estimator in _VARIANTS:
        config.fact("grpo.variant", _VARIANTS[estimator], key)
    else:
        config.warn(key, f"{estimator} is read as grpo: a group of responses and no critic")


def critic(config: Config) -> None:
    """A critic exists if it is enabled, or if nothing is said and the estimator is gae."""
    enabled, estimator = config.flag("critic.enable"), config.get("algorithm.adv_estimator")
    if enabled is not None:
        config.fact("critic.kind", "model" if enabled else "none", "critic.enable")
    elif estimator == "gae":
        config.fact("critic.kind", "model", "algorithm.adv_estimator")
    elif estimator is None and "algorithm.adv_estimator" not in config.gaps:
        config.assume("critic.kind", "model", "algorithm.adv_estimator", "gae")
    if any(fact.path == "critic.kind" and fact.value == "model" for fact in config.facts):
        _critic_keys(config)
    elif idle := [key for key in config.content if key in CRITIC or "critic." in str(RULED.get(key, ()))]:
        config.warn(idle[0], "and other keys of the critic have no effect: there is none")


def _critic_keys(config: Config) -> None:
    for key, (path, convert) in CRITIC.items():
        if config.says(key):
            with config.reading(key):
                config.fact(path, convert(config.get(key)), key)
    rank = config.get("critic.model.lora_rank")
    if rank:
        config.fact("critic.tuning", "lora", "critic.model.lora_rank")
        config.fact("critic.lora.rank", rank, "critic.model.lora_rank")
    own, budget = "critic.use_dynamic_bsz", "critic.ppo_max_token_len_per_gpu"
    switch = own if config.says(own) else f"{ACTOR}use_dynamic_bsz"
    if not config.flag(switch):
        _sequences(config, "critic.micro_batch", "critic.ppo_micro_batch_size")
        return
    config.fact("critic.token_budget", config.or_default(budget), budget if config.says(budget) else switch)
    forward = "critic.forward_max_token_len_per_gpu"
    if config.says(forward):
        config.fact("critic.logprob.token_budget", config.get(forward), forward)


def cluster(config: Config) -> None:
    """`trainer.nnodes` machines with `trainer.n_gpus_per_node` GPUs each; HSDP by `fsdp_size`."""
    keys = ("trainer.n_gpus_per_node", "trainer.nnodes")
    with config.reading(keys[1]):
        each, nodes = (_whole(config.or_default(key)) for key in keys)
        if config.says(*keys):
            config.derive("gpus", each * nodes, keys, " * ".join(keys))
        size = config.get(f"{FSDP}fsdp_size")
        if size in (None, -1):
            return
        config.fact("shard_size", size, f"{FSDP}fsdp_size")
        if not any(key in config.gaps for key in keys) and each * nodes % _whole(size) == 0:
            config.fact("replicas", each * nodes // _whole(size), f"{FSDP}fsdp_size")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is not a whole number above 0")
    return value


def lengths(config: Config) -> None:
    """A sequence is a prompt and a response."""
    keys = ("data.max_prompt_length", "data.max_response_length")
    if not config.says(*keys):
        return
    with config.reading(next(key for key in keys if config.get(key) is not None)):
        config.derive("seq_len", sum(_whole(config.or_default(key)) for key in keys), keys, " + ".join(keys))


def work(config: Config) -> None:
    """The micro-batch of the update and of the two log-prob passes: sequences, or a budget of tokens."""
    dynamic = config.flag(f"{ACTOR}use_dynamic_bsz")
    budget = f"{ACTOR}ppo_max_token_len_per_gpu"
    if dynamic:
        config.fact(
            "token_budget", config.or_default(budget), budget if config.says(budget) else f"{ACTOR}use_dynamic_bsz"
        )
    else:
        _sequences(config, "micro_batch", f"{ACTOR}ppo_micro_batch_size")
    for path, prefix in (("logprob", ROLLOUT), ("reference.logprob", REF)):
        own = config.flag(f"{prefix}log_prob_use_dynamic_bsz")
        if dynamic if own is None else own:
            _budget(config, f"{path}.token_budget", f"{prefix}log_prob_max_token_len_per_gpu", budget)
        else:
            _sequences(config, f"{path}.micro_batch", f"{prefix}log_prob_micro_batch_size")


def _budget(config: Config, path: str, key: str, other: str) -> None:
    if key not in config.gaps and other not in config.gaps:
        given = next((known for known in (key, other) if config.says(known)), f"{ACTOR}use_dynamic_bsz")
        value = config.get(key) if config.says(key) else config.or_default(other)
        config.fact(path, value, given)


def _sequences(config: Config, path: str, key: str) -> None:
    """Sequences per GPU, or the old key that counts over all GPUs."""
    if config.says(f"{key}_per_gpu"):
        config.fact(path, config.get(f"{key}_per_gpu"), f"{key}_per_gpu")
        return
    sizes = ("trainer.n_gpus_per_node", "trainer.nnodes")
    if not config.says(key) or any(size in config.gaps for size in sizes):
        return
    with config.reading(key):
        gpus = _whole(config.or_default(sizes[0])) * _whole(config.or_default(sizes[1]))
        ranks = gpus // _whole(config.or_default(f"{ACTOR}ulysses_sequence_parallel_size")) or 1
        if _whole(config.get(key)) % ranks:
            raise ValueError(
                f"{config.get(key)} sequences over all GPUs do not divide among {ranks} data-parallel ranks"
            )
        config.fact(path, config.get(key) // ranks, key)
        config.warn(key, f"counts sequences over all GPUs ({ranks} data-parallel ranks): a key of old versions")


def precision(config: Config) -> None:
    """The dtype of the matrix products: the sharding's mixed precision, or the older key."""
    key = next((key for key in (f"{FSDP}mixed_precision.param_dtype", f"{FSDP}dtype") if config.says(key)), "")
    if key:
        with config.reading(key):
            config.fact("compute_dtype", one_of(DTYPES)(config.get(key)), key)


def layout(config: Config) -> None:
    """Offload by FSDP2's policy, which keeps everything on the host, and what one gathered unit holds."""
    if config.flag(f"{FSDP}offload_policy"):
        for part in ("weights", "gradients", "optimizer"):
            config.fact(f"offload.{part}", "cpu", f"{FSDP}offload_policy")
    least = config.get(f"{FSDP}wrap_policy.min_num_params")
    if least:
        config.fact("wrap", "size", f"{FSDP}wrap_policy.min_num_params")


def optimizer(config: Config) -> None:
    """A class, and the module it comes from; torch's run in their foreach form unless told otherwise."""
    keys = [f"{ACTOR}optim.optimizer", f"{ACTOR}optim.optimizer_impl"]
    if not config.says(*keys):
        return
    name, module = config.get(keys[0]) or "AdamW", config.get(keys[1]) or "torch.optim"
    key = keys[0] if config.says(keys[0]) else keys[1]
    with config.reading(key):
        kind, implementation = one_of(_OPTIMIZERS)(f"{module}.{name}")
        config.fact("optimizer", kind, key)
        if implementation:
            config.fact("optimizer.impl", implementation, key)


def attention(config: Config) -> None:
    """`attn_implementation` of the model's overrides; with sdpa torch chooses the kernel."""
    key = f"{MODEL}override_config.attn_implementation"
    if config.says(key):
        text = str(config.get(key)).lower()
        with config.reading(key):
            kernel = "flash" if "flash" in text else one_of({"eager": "eager", "sdpa": None})(text)
            config.fact("attention", kernel, key)


def entropy(config: Config) -> None:
    """Entropy inside the update, by its coefficient or for the log."""
    coefficient, counted = f"{ACTOR}entropy_coeff", f"{ACTOR}calculate_entropy"
    with config.reading(coefficient):
        weighs = bool(number(config.get(coefficient) or 0))
        kind = "chunked" if config.flag(f"{ACTOR}entropy_from_logits_with_chunking") else "grad"
        if weighs or config.flag(counted):
            config.fact("entropy", kind, coefficient if weighs else counted)
        elif config.says(coefficient):
            config.fact("entropy", "none", coefficient)


def adapters(config: Config) -> None:
    """LoRA by its rank; adapters are pushed to an engine that keeps its base weights, unless they are merged."""
    key = next((key for key in (f"{MODEL}lora_rank", f"{MODEL}lora.rank") if config.says(key)), "")
    rank, merge = config.get(key) if key else None, f"{MODEL}lora.merge"
    if key:
        config.fact("tuning", "lora" if rank else "full", key)
    if rank:
        config.fact("lora.rank", rank, key)
    if rank and config.says(f"{MODEL}target_modules"):
        config.fact("lora.targets", names(config.get(f"{MODEL}target_modules")), f"{MODEL}target_modules")
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
        with_adapter = config.get(f"{MODEL}lora_rank") or config.get(f"{MODEL}lora.rank")
        kind = ("adapter_off" if with_adapter else "copy") if on else "none"
        config.fact("reference.kind", kind, on or next(key for key in keys if config.says(key)))
    if config.flag(f"{REF}fsdp_config.param_offload") is False:
        config.warn(f"{REF}fsdp_config.param_offload", "is ignored by verl: the reference rests on the host under FSDP")
    model = config.flag("reward.reward_model.enable")
    if model is not None:
        config.fact("reward.kind", "model" if model else "rules", "reward.reward_model.enable")
    if model and config.get("reward.reward_model.model_path"):
        config.fact("reward.model", config.get("reward.reward_model.model_path"), "reward.reward_model.model_path")


def matters(config: Config, path: str) -> bool:
    """Whether a path that has no known value is used at all."""
    dynamic = bool(config.flag(f"{ACTOR}use_dynamic_bsz"))
    if path.startswith("critic.") and path != "critic.kind":
        return any(fact.path == "critic.kind" and fact.value == "model" for fact in config.facts)
    if path.startswith("reference.logprob"):
        kinds = [fact.value for fact in config.facts if fact.path == "reference.kind"]
        return bool(kinds) and kinds[0] != "none" and path.endswith("token_budget") == dynamic
    if path.endswith(("token_budget", "micro_batch")):
        return path.endswith("token_budget") == dynamic
    return True
