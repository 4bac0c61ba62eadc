"""accelerate's YAML (`accelerate config`, `--config_file`): how many processes there are and how they share the states.

It stands beside the configuration of a trainer, which says the rest. Read in accelerate 1.15.0.
"""

from __future__ import annotations

from typing import Any

from vramcast.errors import near, refuse
from vramcast.readers.document import Document
from vramcast.readers.trl_keys import flag, one_of
from vramcast.readers.trl_sheet import Sheet
from vramcast.types.job import Fact, Origin, Understanding, check_value

_DEFAULT = "accelerate 1.15 default"
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_WRAPS = {"NO_WRAP": "none", "TRANSFORMER_BASED_WRAP": "block", "SIZE_BASED_WRAP": "size"}
_KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
_HOMES = {"none": "none", "cpu": "cpu", "nvme": "nvme"}
_PARALLEL = {"tp_size": "tp", "cp_size": "cp", "sp_size": "ulysses"}
_BLOCKS = ("fsdp_config", "deepspeed_config", "parallelism_config")

_NO_EFFECT = frozenset(
    "compute_environment debug downcast_bf16 enable_cpu_affinity gpu_ids machine_rank main_training_function "
    "main_process_ip main_process_port rdzv_backend same_network tpu_env tpu_use_cluster tpu_use_sudo use_cpu "
    "gradient_clipping deepspeed_multinode_launcher deepspeed_hostfile transformer_layer_cls_to_wrap min_num_params "
    "use_orig_params cpu_ram_efficient_loading sync_module_states zero3_init_flag mpirun_config commands command_file "
    "tpu_name tpu_zone num_cpu_threads_per_process".split()
)
"""Keys that do not change the memory of a step, blocks' keys without their prefix."""
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "limit_all_gathers": (True,),
    "backward_prefetch": ("NO_PREFETCH",),
    "state_dict_type": ("SHARDED_STATE_DICT",),
}
"""Keys that are not modelled, with the values at which that does not matter (beside null and false)."""


def read_accelerate(document: Document, where: str) -> Understanding:
    """The facts of an accelerate configuration; `where` is the file in origins.

    Raises:
        Refused: with every wrong value, or a kind of launch that is not modelled.
    """
    plan = _Plan(document, where)
    kind = _kind(plan)
    _processes(plan, kind)
    _precision(plan, kind)
    if kind in ("NO", "MULTI_GPU"):
        plan.fact("shard", "none", "distributed_type")
    elif kind == "FSDP":
        _fsdp(plan)
    else:
        _deepspeed(plan)
    _parallelism(plan)
    _rest(plan, kind)
    return plan.understanding()


class _Plan(Sheet):
    """The keys of the file, those of its blocks under `block.key` without the block's prefix."""

    def __init__(self, document: Document, name: str) -> None:
        super().__init__(document, name)
        self.read: set[str] = set()
        for block in _BLOCKS:
            prefix = f"{block}_" if block == "parallelism_config" else "fsdp_" if block == "fsdp_config" else ""
            for key, value in self.table(block).items():
                self.take_as(f"{block}.{key}", f"{block}.{key.removeprefix(prefix)}", value)

    def get(self, key: str) -> Any:
        self.read.add(key)
        return super().get(key)

    def assume(self, path: str, value: Any, text: str) -> None:
        """A fact that follows from a key that is left out."""
        self.facts.append(Fact(path, value, Origin(f"{_DEFAULT} ({text})")))


def _kind(plan: _Plan) -> str:
    """`distributed_type`: YAML reads an unquoted NO as false."""
    written = plan.get("distributed_type")
    if written is None:
        blocks = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED"}
        guess = next((kind for block, kind in blocks.items() if plan.content.get(block)), "MULTI_GPU")
        return "NO" if guess == "MULTI_GPU" and plan.get("num_processes") in (None, 1) else guess
    kind = "NO" if written is False else str(written).upper()
    if kind not in _KINDS:
        raise refuse(
            f"distributed_type {written} is not modelled yet",
            **{"from": plan.where("distributed_type"), "near": near(kind, _KINDS), "known": ", ".join(_KINDS)},
        )
    return kind


def _processes(plan: _Plan, kind: str) -> None:
    """`num_processes` counts the processes of all machines."""
    count, machines = plan.get("num_processes"), plan.get("num_machines")
    if kind == "NO":
        plan.fact("gpus", 1, "distributed_type")
    elif count is not None and count != -1:
        plan.fact("gpus", count, "num_processes")
        if isinstance(count, int) and isinstance(machines, int) and machines > 1 and count % machines == 0:
            plan.fact("gpus_per_node", count // machines, "num_machines")


def _precision(plan: _Plan, kind: str) -> None:
    """`no` asks for nothing: the trainer's own setting counts. Only DDP and FSDP1 run under autocast."""
    written = plan.get("mixed_precision")
    if written in (None, False, "no"):
        return
    with plan.reading("mixed_precision"):
        plan.fact("compute_dtype", one_of({"bf16": "bf16", "fp16": "fp16"})(written), "mixed_precision")
        if kind == "NO" or kind == "MULTI_GPU" or (kind == "FSDP" and _version(plan) == 1):
            plan.fact("autocast", True, "mixed_precision")


def _version(plan: _Plan) -> int:
    version = plan.get("fsdp_config.version")
    with plan.reading("fsdp_config.version"):
        if version not in (None, 1, 2, "1", "2"):
            raise ValueError(f"{version!r} is not 1 or 2")
    return 2 if version in (2, "2") else 1


def _fsdp(plan: _Plan) -> None:
    version = _version(plan)
    if plan.get("fsdp_config.version") is None:
        plan.assume("shard", "fsdp1", "fsdp_version 1")
    else:
        plan.fact("shard", f"fsdp{version}", "fsdp_config.version")
    if version == 2:
        _reshard(plan)
    else:
        _strategy(plan)
    _wrap(plan)
    if plan.flag("fsdp_config.offload_params"):
        for part in ("weights", "gradients", "optimizer"):
            plan.fact(f"offload.{part}", "cpu", "fsdp_config.offload_params")
    if plan.flag("fsdp_config.activation_checkpointing"):
        plan.fact("recompute", "full", "fsdp_config.activation_checkpointing")
    if plan.flag("fsdp_config.activation_checkpointing_offload"):
        plan.fact("recompute", "offloaded", "fsdp_config.activation_checkpointing_offload")


def _reshard(plan: _Plan) -> None:
    """Version 2: true or false, also in quotes."""
    key = "fsdp_config.reshard_after_forward"
    if plan.get(key) is not None:
        with plan.reading(key):
            plan.fact("reshard", flag(plan.get(key)), key)


def _strategy(plan: _Plan) -> None:
    """Version 1: a name or its number, under the old key or the new one."""
    keys = ("fsdp_config.sharding_strategy", "fsdp_config.reshard_after_forward")
    key = next((key for key in keys if plan.get(key) is not None), "")
    if not key:
        return
    with plan.reading(key):
        strategy = _strategy_name(plan.get(key))
        if strategy == "NO_SHARD":
            plan.facts = [fact for fact in plan.facts if fact.path != "shard"]
            plan.fact("shard", "none", key)
            return
        plan.fact("reshard", strategy in ("FULL_SHARD", "HYBRID_SHARD"), key)
        if strategy.startswith("HYBRID"):
            _hybrid(plan, key)


def _strategy_name(value: Any) -> str:
    if isinstance(value, bool) or str(value).lower() in ("true", "false"):
        raise ValueError(f"{str(value).lower()} is for fsdp_version 2; version 1 takes {', '.join(_STRATEGIES)}")
    if str(value).isdigit() and 1 <= int(value) <= len(_STRATEGIES):
        return _STRATEGIES[int(value) - 1]
    if str(value).upper() not in _STRATEGIES:
        raise ValueError(f"{value!r} is not one of {', '.join(_STRATEGIES)}, or its number from 1")
    return str(value).upper()


def _hybrid(plan: _Plan, key: str) -> None:
    """Shards inside each machine, copies across machines."""
    count, machines = plan.get("num_processes"), plan.get("num_machines") or 1
    if not isinstance(count, int) or count < 1 or not isinstance(machines, int) or count % machines:
        plan.needs(
            "shard_size", key, "shards inside each machine, and num_processes does not say how many GPUs that is"
        )
        return
    plan.fact("shard_size", count // machines, key)
    plan.fact("replicas", machines, key)


def _wrap(plan: _Plan) -> None:
    key = "fsdp_config.auto_wrap_policy"
    if plan.get(key) is None:
        plan.assume("wrap", "none", "fsdp_auto_wrap_policy NO_WRAP: one unit is the whole model")
        return
    with plan.reading(key):
        plan.fact("wrap", one_of(_WRAPS)(str(plan.get(key)).upper()), key)


def _deepspeed(plan: _Plan) -> None:
    """The block inside the file; a DeepSpeed file that it names says everything else."""
    block = "deepspeed_config."
    if plan.get(f"{block}deepspeed_config_file"):
        plan.needs("shard", f"{block}deepspeed_config_file", "is a file that is not read yet")
        return
    stage = plan.get(f"{block}zero_stage")
    if stage is None:
        plan.assume("shard", "zero2", "zero_stage 2")
    else:
        with plan.reading(f"{block}zero_stage"):
            shard = one_of({"0": "none", "1": "zero1", "2": "zero2", "3": "zero3"})(str(stage))
            plan.fact("shard", shard, f"{block}zero_stage")
    for part, path in (("optimizer", "offload.optimizer"), ("param", "offload.weights")):
        key = f"{block}offload_{part}_device"
        if plan.get(key) is not None:
            with plan.reading(key):
                plan.fact(path, one_of(_HOMES)(str(plan.get(key)).lower()), key)
    if str(plan.get(f"{block}offload_param_device")).lower() in ("cpu", "nvme") and str(stage) != "3":
        plan.warn(f"{block}offload_param_device", "has an effect at zero_stage 3 only")
    steps = plan.get(f"{block}gradient_accumulation_steps")
    if steps not in (None, "auto"):
        plan.fact("accumulation", steps, f"{block}gradient_accumulation_steps")


def _parallelism(plan: _Plan) -> None:
    block = "parallelism_config."
    for name, path in {**_PARALLEL, "dp_replicate_size": "replicas", "dp_shard_size": "shard_size"}.items():
        if plan.get(f"{block}{name}") is not None:
            plan.fact(path, plan.get(f"{block}{name}"), f"{block}{name}")
    sizes = [plan.get(f"{block}{name}") for name in ("dp_replicate_size", "dp_shard_size", *_PARALLEL)]
    if plan.get("num_processes") is None and any(isinstance(size, int) for size in sizes):
        total = 1
        for size in sizes:
            total *= size if isinstance(size, int) else 1
        origin = Origin(plan.where("parallelism_config"), "the product of its sizes")
        plan.facts.append(Fact("gpus", check_value("gpus", total, origin), origin))


def _rest(plan: _Plan, kind: str) -> None:
    """Keys that no rule has read."""
    other = {"FSDP": "deepspeed_config", "DEEPSPEED": "fsdp_config"}.get(kind, "fsdp_config")
    for key, value in plan.content.items():
        name = key.rpartition(".")[2]
        if key in _BLOCKS or key in plan.read or name in _NO_EFFECT or key.startswith(f"{other}."):
            continue
        if value not in (None, False, "false", "", [], {}, *_DEFAULTS.get(name, ())):
            plan.leave(key)
