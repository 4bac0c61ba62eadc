"""What `accelerate launch`, `torchrun` and `deepspeed` are told about processes, and how these share the states."""

from __future__ import annotations

import os
import re
from typing import Any

from vramcast.errors import refuse
from vramcast.readers.accelerate import read_accelerate
from vramcast.readers.document import Document, parse
from vramcast.readers.files import read_text
from vramcast.readers.flags import Flags, beside
from vramcast.types.job import Fact, Origin, Understanding, check_value

_OWN = re.compile(
    r"accelerate_config|config_file|num_processes|num_machines|mixed_precision|multi_gpu|use_fsdp|use_deepspeed|machine_rank"
    r"|main_process_ip|main_process_port|gpu_ids|zero_stage|zero3_\w+|offload_\w+_(?:device|nvme_path)|deepspeed_\w+"
    r"|fsdp_(?!config)\w+|parallelism_config_\w+|num_cpu_threads_per_process|rdzv_backend|same_network"
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
    """Whether `trl` hands the option on to `accelerate launch`."""
    return bool(_OWN.fullmatch(key))


def read_starter(flags: Flags, starter: str, script: str, folder: str) -> Understanding:
    """The facts of a launcher's options; `folder` is where a file that they name may stand.

    Raises:
        Refused: with every wrong value, or a file that cannot be read.
    """
    if starter in ("torchrun", "deepspeed"):
        return _processes(flags, script)
    if not flags.values:
        return Understanding([])
    key = "accelerate_config" if "accelerate_config" in flags.values else "config_file"
    chosen = flags.values.pop(key, None)
    if chosen in _PRESETS:
        document, name = (
            Document({**_OF_ALL_PRESETS, **_PRESETS[chosen]}, {}),
            f"trl's accelerate_configs/{chosen}.yaml",
        )
    elif chosen is not None:
        document, name = named_file(str(chosen), f"{script}:{flags.lines[key]}", folder)
    else:
        document, name = Document({}, {}), ""
    content, lines = _merged(document.content, flags)
    return beside(read_accelerate(Document(content, lines), script), document, set(lines), script, name)


def _merged(base: dict[str, Any], flags: Flags) -> tuple[dict[str, Any], dict[str, int]]:
    """A file's keys with the options over them, nested as the file is."""
    content: dict[str, Any] = {}
    for key, value in base.items():
        content[key] = {**value} if isinstance(value, dict) else value
    lines: dict[str, int] = {}
    for key, value in flags.values.items():
        block = next((block for block, pattern in _BLOCKS.items() if pattern.fullmatch(key)), "")
        if key in _SWITCHES:
            content["distributed_type"], lines["distributed_type"] = _SWITCHES[key], flags.lines[key]
        elif block:
            content.setdefault(block, {})[key] = value
            lines[f"{block}.{key}"] = flags.lines[key]
        else:
            content[key], lines[key] = value, flags.lines[key]
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


def named_file(path: str, where: str, folder: str) -> tuple[Document, str]:
    """A file that a script names, relative to here or to the script, and its name in origins.

    Raises:
        Refused: there is none, or it cannot be read.
    """
    found = next((each for each in (path, os.path.join(folder, path)) if os.path.isfile(each)), None)
    if found is None:
        raise refuse(f"no such file: {path}", **{"from": where, "help": "it is looked for here and beside the script"})
    name, text = read_text(found, None)
    return parse(name, text), name
