"""Which program a command starts: behind `nohup`, `ray job submit ... --`, `torchrun`, `accelerate launch`, ..."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from vramcast.readers.bash.words import Word

LOOKED_FOR = (
    "python -m verl.trainer.main_ppo, trl sft|dpo|kto|reward|grpo|rloo, "
    "accelerate launch, torchrun or deepspeed with a script"
)
_WRAPPERS = frozenset(
    "nohup time exec env sudo stdbuf numactl srun mpirun uv poetry ray docker podman apptainer singularity eval".split()
)
_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?")
_STARTERS = {"torchrun": "torchrun", "accelerate": "accelerate", "deepspeed": "deepspeed", "trl": "trl"}
_STARTER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
# Options of the launchers that stand without a value.
_BARE = frozenset(
    "standalone no_python m module run_path multi_gpu use_fsdp use_deepspeed use_megatron_lm use_parallelism_config "
    "cpu quiet q debug tpu no_local_rank enable_cpu_affinity same_network force_multi".split()
)
_VERL = re.compile(
    r"verl\.trainer\.main_ppo(?:_v0)?|(?:verl\.)?recipe\.dapo(?:_transfer_queue)?\.main_dapo|(?:.*/)?main_(?:ppo|dapo)\.py"
)
_OF_VERL = (
    (re.compile(r"(?:verl|recipe)\.(?:\w+\.)*(?:one_step_off|fully_async)\w*\.\w+"),
     "verl's trainer with an engine on GPUs of its own"),
    (re.compile(r"(?:verl|recipe)\.(?:\w+\.)*main_generation\w*"), "verl's generation"),
    (re.compile(r"(?:verl|recipe)\.(?:\w+\.)*main_eval"), "verl's evaluation"),
    (re.compile(r"(?:verl|recipe)\.(?:\w+\.)*\w*main\w*|verl_\w+\.\w+"), "another trainer on verl"),
)  # fmt: skip
"""Programs that are no such trainer, and what they are."""
_VERL_SFT = re.compile(r"verl\.trainer\.(?:fsdp_)?sft_trainer(?:_ray)?")
_TRL = re.compile(r"trl\.scripts\.\w+|(?:.*/)?trl/scripts/\w+\.py|(?:.*/)?(?:sft|dpo|kto|reward|grpo|rloo)\.py")
_OTHERS = {
    "openrlhf": "OpenRLHF",
    "llamafactory": "LLaMA-Factory",
    "llamafactory-cli": "LLaMA-Factory",
    "axolotl": "axolotl",
    "swift": "ms-swift",
    "slime": "slime",
    "megatron": "ms-swift",
    "torchtune": "torchtune",
    "tune": "torchtune",
    "nemo_rl": "NeMo-RL",
}
_OTHER_SCRIPTS = (
    (re.compile(r"(?:.*/)?start_\w+_pipeline\.py"), "ROLL"),
    (re.compile(r"(?:.*/)?examples/run_\w+\.py"), "NeMo-RL"),
    (re.compile(r"(?:.*/)?swift/cli/.*\.py"), "ms-swift"),
    (re.compile(r"(?:.*/)?openrlhf/.*\.py"), "OpenRLHF"),
)
_OF_SLIME = frozenset("actor_num_gpus_per_node rollout_num_gpus rollout_num_gpus_per_engine actor_num_nodes".split())
_SERVES = frozenset("vllm-serve env version --help -h --version".split())
"""Words behind `trl` that train nothing."""


class Launch(NamedTuple):
    """What a training command starts."""

    kind: str
    """verl, trl, script (a Python file, told by its name and arguments), or a framework that is not read"""
    program: str
    starter: str
    """torchrun, accelerate, deepspeed, trl, or empty"""
    options: Sequence[Word]
    """words for the starter"""
    arguments: Sequence[Word]
    """words for the program"""
    line: int = 0


def recognise(words: Sequence[Word]) -> Launch | None:
    """What the command starts, if that is training."""
    launch = _launch(words)
    return launch._replace(line=words[0].line) if launch else None


def _launch(words: Sequence[Word]) -> Launch | None:
    at = 0
    if words and _name(words[0].text) in _WRAPPERS:
        at = next((i for i, word in enumerate(words) if _starts(word.text)), len(words))
    rest = words[at:]
    if not rest:
        return None
    name = _name(rest[0].text)
    if _PYTHON.fullmatch(rest[0].text) or (rest[0].gaps and not rest[0].text):  # $PYTHON -m ...
        return _python(rest[1:])
    if name == "trl" and len(rest) > 1:
        if rest[1].text in _SERVES:
            return None
        return Launch("trl", f"trl {rest[1].text}", "trl", (), rest[2:])
    if name in _STARTERS:
        return _started(name, rest[2:] if name == "accelerate" else rest[1:])
    if name in _OTHERS:
        return Launch(_OTHERS[name], name, "", (), rest[1:])
    return None


def _starts(text: str) -> bool:
    return bool(_PYTHON.fullmatch(text)) or _name(text) in _STARTERS or _name(text) in _OTHERS


def _name(text: str) -> str:
    return text.rpartition("/")[2]


def _python(words: Sequence[Word]) -> Launch | None:
    """`python [options] -m module ...` or `python [options] file.py ...`"""
    i = 0
    while i < len(words) and words[i].text.startswith("-") and words[i].text != "-m":
        i += 2 if words[i].text in ("-X", "-W") else 1
    if i < len(words) and words[i].text == "-m":
        i += 1
    if i >= len(words):
        return None
    program, arguments = words[i].text, words[i + 1 :]
    if program in _STARTER_MODULES:
        return _started(_STARTER_MODULES[program], arguments)
    launch = _program(program, "", (), arguments)
    # Plain Python files prepare data, convert checkpoints and so on: one with a model's name trains.
    trains = any(_key(argument.text) in ("model_name_or_path", "config") for argument in arguments)
    return launch if launch.kind != "script" or trains else None


def _started(starter: str, words: Sequence[Word]) -> Launch | None:
    """A launcher's options, then the program."""
    i = 0
    while i < len(words):
        text = words[i].text
        if not text.startswith("-"):
            return _program(text, starter, words[:i], words[i + 1 :])
        if text == "--":
            i += 1
        else:
            i += 1 if "=" in text or _key(text) in _BARE else 2
    return None


def _key(text: str) -> str:
    """`--a-b=1` → `a_b`; empty for what is no option."""
    return text.lstrip("-").partition("=")[0].replace("-", "_") if text.startswith("-") else ""


def _program(program: str, starter: str, options: Sequence[Word], arguments: Sequence[Word]) -> Launch:
    if _VERL.fullmatch(program):
        return Launch("verl", program, starter, options, arguments)
    other = next((what for pattern, what in _OF_VERL if pattern.fullmatch(program)), "")
    if other:
        return Launch(f"{program} ({other})", program, starter, options, arguments)
    if _VERL_SFT.fullmatch(program):
        return Launch("verl's SFT trainer", program, starter, options, arguments)
    if _TRL.fullmatch(program):
        return Launch("trl", program, starter, options, arguments)
    other = _OTHERS.get(program.partition(".")[0])
    other = other or next((name for pattern, name in _OTHER_SCRIPTS if pattern.fullmatch(program)), None)
    if any(_key(argument.text) in _OF_SLIME for argument in arguments):
        other = "slime"
    return Launch(other or "script", program, starter, options, arguments)
