"""accelerate's YAML (`accelerate config`, `--config_file`): how many processes there are and how they share the states.

It stands beside the configuration of a trainer, which says the rest. Read in accelerate 1.15.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from vramcast.errors import near, refuse
from vramcast.readers.config import ConfigReader
from vramcast.readers.document import Document
from vramcast.readers.frameworks.trl.keys import flag, one_of
from vramcast.types.job import Fact, Origin, Understanding, check_value

_DEFAULT = "accelerate 1.15 default"
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_WRAPS = {"NO_WRAP": "none", "TRANSFORMER_BASED_WRAP": "block", "SIZE_BASED_WRAP": "size"}
_KINDS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED")
_HOMES = {"none": "none", "cpu": "cpu", "nvme": "nvme"}
_PARALLEL = {"tp_size": "tp", "cp_size": "cp", "sp_size": "ulysses"}
_BLOCKS_OF = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED"}
_BLOCKS = (*_BLOCKS_OF, "parallelism_config")

_NO_EFFECT = frozenset(
    "compute_environment debug downcast_bf16 enable_cpu_affinity gpu_ids machine_rank main_training_function "
    "main_process_ip main_process_port rdzv_backend same_network tpu_env tpu_use_cluster tpu_use_sudo "
    "gradient_clipping deepspeed_multinode_launcher deepspeed_hostfile transformer_layer_cls_to_wrap min_num_params "
    "use_orig_params cpu_ram_efficient_loading sync_module_states zero3_init_flag mpirun_config commands command_file "
    "tpu_name tpu_zone num_cpu_threads_per_process num_machines quiet module no_python max_restarts monitor_interval "
    "rdzv_conf role tee log_dir main_process_args deepspeed_exclusion_filter deepspeed_inclusion_filter "
    "offload_optimizer_nvme_path offload_param_nvme_path use_parallelism_config".split()
)
"""Keys that do not change the memory of a step, blocks' keys without their prefix."""
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "limit_all_gathers": (True, "true"),
    "backward_prefetch": ("NO_PREFETCH",),
    "forward_prefetch": (False, "false"),
    "state_dict_type": ("SHARDED_STATE_DICT",),
    "cp_backend": ("torch",),
    "cp_comm_strategy": ("allgather",),
    "sp_backend": ("deepspeed",),
}
"""Keys that are not modelled, with the values at which that does not matter (beside null and the empty ones)."""
_CHOOSES = {
    "use_cpu": "training on the CPU",
    "cpu": "training on the CPU",
    "tpu": "training on TPUs",
    "use_megatron_lm": "Megatron-LM's layout",
    "megatron_lm": "Megatron-LM's layout",
    "fp8": "training in FP8",
    "dynamo": "a compiled model",
    "moe_layer_cls_names": "which layers are experts",
    "ignored_modules": "modules that are not sharded",
}
"""What keys choose that is not modelled, by their name or its beginning (`fp8_config`, `fp8_backend`)."""
_OFF = (None, False, "false", "no", "NO", "", 0)


def read_accelerate(document: Document, where: str, folder: str = "") -> Understanding:
    """The facts of an accelerate configuration; `where` is the file in origins, `folder` that of files it names.

    Raises:
        Refused: with every wrong value, or a kind of launch that is not modelled.
    """
    plan = _Plan(document, where)
    kind = _kind(plan)
    _processes(plan, kind)
    _precision(plan, kind)
    named = Understanding([])
    if kind in ("NO", "MULTI_GPU"):
        _plain(plan)
    elif kind == "FSDP":
        _fsdp(plan)
    else:
        named = _deepspeed(plan, folder)
    _parallelism(plan)
    _rest(plan, kind)
    return plan.understanding() + named


def read_fsdp(values: Mapping[str, Any], labels: Mapping[str, str], config: ConfigReader) -> Understanding:
    """FSDP as a trainer's own arguments choose it: accelerate's options (without `fsdp_`), and how the file of `config`
    writes each of them.

    Raises:
        Refused: with every wrong value.
    """
    plan = _Plan(Document({"fsdp_config": dict(values)}, config.lines), config.name)
    plan.written.update({f"fsdp_config.{key}": label for key, label in labels.items()})
    _fsdp(plan)
    _rest(plan, "FSDP")
    return plan.understanding()


def read_parallelism(values: Mapping[str, Any], config: ConfigReader) -> Understanding:
    """`parallelism_config` as a trainer's own argument.

    Raises:
        Refused: with every wrong value.
    """
    plan = _Plan(Document({"parallelism_config": dict(values)}, config.lines), config.name)
    _parallelism(plan)
    _rest(plan, "NO")
    return plan.understanding()


class _Plan(ConfigReader):
    """The keys of the file, those of its blocks under `block.key` without the block's prefix."""

    def __init__(self, document: Document, name: str) -> None:
        super().__init__(document, name)
        for block in _BLOCKS:
            prefix = f"{block}_" if block == "parallelism_config" else "fsdp_" if block == "fsdp_config" else ""
            for key, value in self.table(block).items():
                self.take_as(f"{block}.{key}", f"{block}.{key.removeprefix(prefix)}", value)

    def assume(self, path: str, value: Any, text: str) -> None:
        """A fact that follows from a key that is left out."""
        self.facts.append(Fact(path, value, Origin(f"{_DEFAULT} ({text})")))


def _kind(plan: _Plan) -> str:
    """`distributed_type`: YAML reads an unquoted NO as false."""
    written = plan.get("distributed_type")
    plan.settled.add("distributed_type")
    if written is None:
        guess = next((kind for block, kind in _BLOCKS_OF.items() if plan.content.get(block)), "MULTI_GPU")
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
        if count is not None:
            plan.rest("num_processes", "distributed_type is NO")
    elif count is not None and count != -1:
        plan.fact("gpus", count, "num_processes")
        if isinstance(count, int) and isinstance(machines, int) and machines > 1 and count % machines == 0:
            plan.fact("gpus_per_node", count // machines, "num_machines")
    elif count is not None:
        plan.rest("num_processes", "as many as there are")


def _precision(plan: _Plan, kind: str) -> None:
    """`no` asks for nothing: the trainer's own setting counts. Only DDP and FSDP1 run under autocast."""
    written = plan.get("mixed_precision")
    if written in (None, False, "no"):
        if written is not None:
            plan.rest("mixed_precision", "the trainer's own setting counts")
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


def _plain(plan: _Plan) -> None:
    """One process, or DDP: what accelerate does with several processes when nothing else is asked for."""
    if plan.get("distributed_type") is None:
        plan.assume("shard", "none", "distributed_type NO, or MULTI_GPU for several processes")
    else:
        plan.fact("shard", "none", "distributed_type")


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
    for key in ("fsdp_config.offload_params", "fsdp_config.cpu_offload"):
        on = plan.flag(key)
        for part in ("weights", "gradients", "optimizer") if on is not None else ():
            plan.fact(f"offload.{part}", "cpu" if on else "none", key)
    for key, policy in (("activation_checkpointing", "full"), ("activation_checkpointing_offload", "offloaded")):
        if plan.flag(f"fsdp_config.{key}"):
            plan.fact("recompute", policy, f"fsdp_config.{key}")
        elif plan.get(f"fsdp_config.{key}") is not None:
            plan.rest(f"fsdp_config.{key}", "off: the trainer's own setting counts")


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


def _deepspeed(plan: _Plan, folder: str) -> Understanding:
    """The block inside the file; a DeepSpeed file that it names says everything else."""
    block = "deepspeed_config."
    file = plan.get(f"{block}deepspeed_config_file")
    if file:
        from vramcast.readers.files import named_file, place_of
        from vramcast.readers.frameworks.deepspeed import read_deepspeed

        key = f"{block}deepspeed_config_file"
        plan.settled.add(plan.label(key))
        if place_of(str(file), folder):
            return read_deepspeed(*named_file(str(file), plan.where(key), folder))
        plan.needs("shard", key, f"names {file}, which is neither here nor beside the configuration")
        return Understanding([])
    stage = plan.get(f"{block}zero_stage")
    if stage is None:
        plan.assume("shard", "zero2", "zero_stage 2")
    elif stage in (0, "0"):
        plan.refuse(f"{block}zero_stage", "DeepSpeed without ZeRO has master weights of its own")
    else:
        with plan.reading(f"{block}zero_stage"):
            shard = one_of({"1": "zero1", "2": "zero2", "3": "zero3"})(str(stage))
            plan.fact("shard", shard, f"{block}zero_stage")
    for part, path in (("optimizer", "offload.optimizer"), ("param", "offload.weights")):
        key = f"{block}offload_{part}_device"
        if plan.get(key) is not None:
            with plan.reading(key):
                plan.fact(path, one_of(_HOMES)(str(plan.get(key)).lower()), key)
    if str(plan.get(f"{block}offload_param_device")).lower() in ("cpu", "nvme") and str(stage) != "3":
        plan.warn(f"{block}offload_param_device", "has an effect at zero_stage 3 only")
    steps = plan.get(f"{block}gradient_accumulation_steps")
    if steps == "auto":
        plan.rest(f"{block}gradient_accumulation_steps", "the trainer fills it in")
    elif steps is not None:
        plan.fact("accumulation", steps, f"{block}gradient_accumulation_steps")
    return Understanding([])


def _parallelism(plan: _Plan) -> None:
    block = "parallelism_config."
    for name, path in {**_PARALLEL, "dp_replicate_size": "replicas", "dp_shard_size": "shard_size"}.items():
        if plan.get(f"{block}{name}") is not None:
            plan.fact(path, plan.get(f"{block}{name}"), f"{block}{name}")
    sizes = [plan.get(f"{block}{name}") for name in ("dp_replicate_size", "dp_shard_size", *_PARALLEL)]
    counts = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool)]
    if plan.get("num_processes") is None and counts:
        origin = Origin(plan.where("parallelism_config"), "the product of its sizes")
        with plan.mistakes.collect():
            plan.facts.append(Fact("gpus", check_value("gpus", prod(counts), origin), origin))


def _rest(plan: _Plan, kind: str) -> None:
    """Keys that no rule has read."""
    for key, value in plan.content.items():
        name, block = key.rpartition(".")[2], key.partition(".")[0]
        if key in _BLOCKS or plan.label(key) in plan.settled:
            continue
        chooses = next((why for start, why in _CHOOSES.items() if name == start or name.startswith(f"{start}_")), "")
        if block in _BLOCKS_OF and kind != _BLOCKS_OF[block]:
            plan.rest(key, f"distributed_type is {kind}")
        elif name in _NO_EFFECT:
            plan.rest(key)
        elif value is None or value in ("", [], {}) or value in _DEFAULTS.get(name, ()):
            plan.rest(key, "the default")
        elif chooses and value in _OFF:
            plan.rest(key, "off")
        elif chooses:
            plan.refuse(key, chooses)
        else:
            plan.leave(key)
