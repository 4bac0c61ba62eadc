"""What `accelerate launch`, `torchrun` and `deepspeed` are told about processes, and how these share the states."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from vramcast.readers.document import Document
from vramcast.readers.files import named_file
from vramcast.readers.flags import Flags, beside
from vramcast.readers.frameworks.accelerate import read_accelerate
from vramcast.types.job import Fact, Origin, Understanding, check_value

_OWN = re.compile(
    r"accelerate_config|config_file|quiet|cpu|tpu|multi_gpu|mixed_precision|num_(?:processes|machines)|gpu_ids"
    r"|num_cpu_threads_per_process|enable_cpu_affinity|same_network|machine_rank|main_\w+|rdzv_\w+|max_restarts"
    r"|monitor_interval|role|tee|log_dir|distributed_type|compute_environment|downcast_bf16|tpu_(?!num_cores|metrics_debug)\w+|use_fsdp"
    r"|use_deepspeed|use_megatron_lm|use_parallelism_config|zero_stage|zero3_\w+|offload_\w+_(?:device|nvme_path)"
    r"|deepspeed_\w+|fsdp_(?!config)\w+|megatron_lm_\w+|fp8_\w+|dynamo_\w+|parallelism_config_\w+|mpirun_\w+"
    r"|gradient_clipping"
)
_BLOCKS = {
    "fsdp_config": re.compile(r"fsdp_.*"),
    "deepspeed_config": re.compile(r"zero.*|offload_.*|deepspeed_.*|gradient_.*"),
    "parallelism_config": re.compile(r"parallelism_config_.*"),
}
_SWITCHES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
_PRESETS: dict[str, dict[str, Any]] = {
    "single_gpu": {"distributed_type": "NO"},
    "multi_gpu": {"distributed_type": "MULTI_GPU"},
    "fsdp1": {
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 1,
            "fsdp_reshard_after_forward": "FULL_SHARD",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_forward_prefetch": True,
        },
    },
    "fsdp2": {
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        },
    },
    **{
        f"zero{stage}": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": stage}}
        for stage in (1, 2, 3)
    },
}
"""trl/accelerate_configs of trl 1.16.0, by name, without the keys that have no effect."""
_OF_ALL_PRESETS = {"mixed_precision": "bf16", "num_processes": 8}
_EACH = ("nproc_per_node", "num_gpus")
_NODES = ("nnodes", "num_nodes")


def is_launcher_option(key: str) -> bool:
    """Whether `accelerate launch` has the option."""
    return bool(_OWN.fullmatch(key))


def handed_on(keys: Collection[str]) -> set[str]:
    """Keys that `trl` hands on to `accelerate launch`: those that no trainer reads."""
    own = {"fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params"} if "fsdp" in keys else set[str]()
    return {key for key in keys if is_launcher_option(key)} - own


def read_starter(flags: Flags, starter: str, script: str, folder: str) -> Understanding:
    """The facts of a launcher's options; `folder` is where a file that they name may stand.

    Raises:
        Refused: with every wrong value, or a file that cannot be read.
    """
    if starter in ("torchrun", "deepspeed"):
        return _processes(flags, script)
    if starter == "":
        return Understanding([])
    if not flags.values:
        return Understanding([])
    key = "accelerate_config" if "accelerate_config" in flags.values else "config_file"
    chosen = flags.values.pop(key, None)
    if isinstance(chosen, str) and chosen in _PRESETS:
        document, name = (
            Document({**_OF_ALL_PRESETS, **_PRESETS[chosen]}, {}),
            f"trl's accelerate_configs/{chosen}.yaml",
        )
    elif chosen is not None:
        where = f"{script}:{flags.lines[key]}" if key in flags.lines else script
        document, name = named_file(str(chosen), f"{where}  {key}", folder)
    else:
        document, name = Document({}, {}), ""
    content, lines = _merged(document.content, flags)
    understood = read_accelerate(Document(content, lines), script, folder)
    return beside(understood, document, set(lines), script, name)


def _merged(base: dict[str, Any], flags: Flags) -> tuple[dict[str, Any], dict[str, int]]:
    """A file's keys with the options over them, nested as the file is."""
    content: dict[str, Any] = {}
    for key, value in base.items():
        content[key] = {**value} if isinstance(value, dict) else value
    lines: dict[str, int] = {}
    for key, value in flags.values.items():
        block = next((block for block, pattern in _BLOCKS.items() if pattern.fullmatch(key)), "")
        line = flags.lines.get(key, 0)  # JSON has no lines
        if key in _SWITCHES:
            if value:
                content["distributed_type"], lines["distributed_type"] = _SWITCHES[key], line
        elif block:
            content.setdefault(block, {})[key] = value
            lines[f"{block}.{key}"] = line
        else:
            content[key], lines[key] = value, line
    return content, lines


def _processes(flags: Flags, script: str) -> Understanding:
    """Machines times GPUs of each; `gpu`, `auto` and ranges of machines leave the number open."""
    each, nodes = (next((key for key in keys if key in flags.values), "") for keys in (_EACH, _NODES))
    count, machines = flags.values.get(each), flags.values.get(nodes, 1)
    if not isinstance(count, int) or not isinstance(machines, int):
        return Understanding([])
    origin = Origin(f"{script}:{flags.lines[each]}", f"{each} * {nodes}" if nodes else each)
    facts = [Fact("gpus", check_value("gpus", count * machines, origin), origin)]
    if nodes and machines > 1:
        facts.append(Fact("gpus_per_node", check_value("gpus_per_node", count, origin), origin))
    return Understanding(facts)
