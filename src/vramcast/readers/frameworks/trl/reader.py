"""TRL YAML (`trl sft --config x.yaml`, dpo, grpo ...): a flat mapping of the fields of three dataclasses and `env`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from vramcast.readers.config import ConfigReader
from vramcast.readers.document import Document
from vramcast.readers.flags import Flags
from vramcast.readers.frameworks.trl import rules
from vramcast.readers.frameworks.trl.keys import CHOOSES, KEYS, NO_EFFECT, OLD, UNREAD, known_key
from vramcast.readers.frameworks.trl.layout import layout
from vramcast.readers.frameworks.trl.native import NATIVE
from vramcast.readers.frameworks.trl.programs import trainer_in
from vramcast.readers.frameworks.trl.versions import version_of
from vramcast.types.job import Fact, Origin, Understanding

__all__ = ["NATIVE", "Program", "read_trl", "trainer_of"]

_SIGNS: dict[str, frozenset[str]] = {
    "rloo": frozenset({"normalize_advantages"}),
    "grpo": frozenset(
        "num_generations max_completion_length num_iterations steps_per_generation generation_batch_size use_vllm "
        "reward_funcs reward_model_name_or_path scale_rewards epsilon_high importance_sampling_level "
        "mask_truncated_completions top_entropy_quantile ds3_gather_for_generation".split()
    ),
    "kto": frozenset({"desirable_weight", "undesirable_weight"}),
    "reward": frozenset({"center_rewards_coefficient"}),
    "dpo": frozenset(
        "precompute_ref_log_probs precompute_ref_batch_size beta f_divergence_type ld_alpha use_weighting discopop_tau "
        "loss_weights max_prompt_length use_logits_to_keep force_use_ref_model".split()
    ),
    "sft": frozenset(
        "packing packing_strategy eval_packing dataset_text_field dataset_kwargs completion_only_loss "
        "assistant_only_loss max_seq_length num_of_sequences chars_per_token".split()
    ),
}
"""Keys that only one trainer has (`beta` and `max_prompt_length`: that remain when it is not GRPO), by trainer."""
_CONFIGS = {
    "rloo": "RLOOConfig",
    "grpo": "GRPOConfig",
    "kto": "KTOConfig",
    "reward": "RewardConfig",
    "dpo": "DPOConfig",
    "sft": "SFTConfig",
}
_DPO_LOSSES = frozenset(
    "sigmoid sigmoid_norm hinge ipo exo_pair nca_pair robust bco_pair sppo_hard aot aot_unpaired apo_zero apo_down "
    "discopop".split()
)
_SFT_LOSSES = ("nll", "chunked_nll", "dft")
_ROLE = re.compile(
    r"(?:.*_)?(?:teacher|student|critic|judge|draft|speculative|value_model|reward_model|ref_model|reference_model)(?:_.*)?"
    r"|(?:.*_)?adapter(?:s|_path|_name|_name_or_path)?"
    r"|(?:.*_)?(?:tensor|pipeline|context|sequence|expert|data)_(?:model_)?parallel(?:_.*)?"
    r"|(?:zero_stage|fsdp|deepspeed|megatron|sglang|vllm|engine|quantization|load_in)(?:_.*)?"
    r"|algorithm|trainer(?:_type|_name)?|algo|adv_estimator|tuner_type|finetuning_type|train_type|model"
)
"""Words of keys that choose roles, layout, algorithm, model or engine, whoever's keys these are."""


class Program(NamedTuple):
    """What is known of the program that reads the keys."""

    trainer: str = ""
    """one of TRL's, or `pretrain`; empty when only the keys can tell"""
    framework: str = "trl"
    launches: bool = True
    """the program starts processes itself (`trl`): keys of `accelerate launch` in its file count"""
    options: Flags = Flags({}, {}, {})
    """what its command line says to `accelerate launch`"""


def read_trl(document: Document, name: str, folder: str = "", program: Program | None = None) -> Understanding:
    """The facts of a TRL file; `name` is the file in origins, `folder` where files that it names may stand.

    Raises:
        Refused: with every wrong value, and every key that chooses what is not modelled.
    """
    program = program or Program()
    config = ConfigReader(document, name)
    trainer, old = _assumed(config, program)
    kind = {"rloo": "grpo", "pretrain": "sft"}.get(trainer, trainer)
    launcher = _launcher(config, folder, program)
    rules.model_arguments(config)
    _old_names(config)
    _table(config)
    own = layout(config, folder, old=old)
    for rule in (
        rules.environment,
        rules.precision,
        rules.adapters,
        rules.lengths,
        rules.optimizer,
        rules.recompute,
        rules.engine,
        rules.evaluation,
        rules.batches,
    ):
        rule(config)
    rules.generation(config, trainer)
    rules.loss(config, kind)
    rules.roles(config, kind)
    config.settle(NO_EFFECT)
    return config.understanding() + own + launcher


def _assumed(config: ConfigReader, program: Program) -> tuple[str, bool]:
    """What the file does not say: the trainer (from its keys, unless the program tells) and the version; whether the
    version is one of transformers 4's time."""
    trainer, sign = (program.trainer, "") if program.trainer else _trainer(config)
    priced = version_of(config.said, trainer, program.framework)
    why = f"whose keys are read: {priced.why}" if priced.why else f"that is known, as {config.name} names no version"
    words = {"trl": "TRL", "transformers": "Transformers"}[program.framework]
    origin = Origin(f"assumed: the newest {words} {why}")
    config.facts.append(Fact("framework", f"{program.framework}=={priced.version}", origin))
    if not program.trainer:
        why = f"key {sign} of {_CONFIGS[trainer]}" if sign else "no key tells the trainer"
        where = Origin(f"{config.where(sign)}: {why}" if sign else f"assumed: {config.name}: {why}")
        if not sign:
            named = "as its name says" if trainer_in(config.name) else "TRL's plainest trainer"
            config.warnings.append(
                f"{config.name}: {why}: priced as {trainer}, {named}; --set algorithm=... names another"
            )
        config.facts.append(Fact("algorithm", "grpo" if trainer == "rloo" else trainer, where))
        if trainer == "rloo":
            config.facts.append(Fact("grpo.variant", "rloo", where))
    if priced.why or priced.contradiction:
        told = priced.contradiction or priced.why
        config.warnings.append(
            f"{config.name}: {told}; priced as {program.framework} {priced.version}, "
            f"--set framework={program.framework}==VERSION names yours"
        )
    return trainer, bool(priced.why)


def trainer_of(keys: Iterable[str]) -> str:
    """The trainer that alone has one of the keys; empty when none tells."""
    return _signed(keys)[0]


def _signed(keys: Iterable[str]) -> tuple[str, str]:
    """(trainer, the key that tells it), both empty when none does."""
    keys = list(keys)
    for kind, signs in _SIGNS.items():
        for key in keys:
            if key in signs or (kind == "grpo" and key.startswith("vllm_")):
                return kind, key
    return "", ""


def _trainer(config: ConfigReader) -> tuple[str, str]:
    """(trainer, the key that tells it, or empty)."""
    kind, key = _signed(config.content)
    if kind:
        return kind, key
    losses = config.get("loss_type")
    if isinstance(losses, list) or str(losses) in _DPO_LOSSES:
        return "dpo", "loss_type"
    if str(losses) in _SFT_LOSSES:
        return "sft", "loss_type"
    return trainer_in(config.name) or "sft", ""


def _launcher(config: ConfigReader, folder: str, program: Program) -> Understanding:
    """Keys of `accelerate launch` in the file: `trl` hands them on, a script that is started already ignores them."""
    from vramcast.readers.launchers import handed_on, read_starter

    part = handed_on(config.said)
    for key in part:
        if config.said[key] is None:
            config.rest(key, "null: as if it were left out")
        elif program.launches:
            config.settled.add(key)
        else:
            config.rest(key, "the processes are started already")
    options = program.options
    if not program.launches or not (part or options.values):
        return Understanding([])
    values = {**{key: config.said[key] for key in part if config.said[key] is not None}, **options.values}
    lines = {**{key: config.lines[key] for key in part if key in config.lines}, **options.lines}
    with config.mistakes.collect():
        return read_starter(Flags(values, lines, {}), "trl", config.name, folder)
    return Understanding([])


def _old_names(config: ConfigReader) -> None:
    for old, key in OLD.items():
        if old in config.said and key in config.content:
            config.rest(old, f"{config.label(key)} counts")
        elif old in config.said:
            config.take_as(old, key, config.content[old])


def _table(config: ConfigReader) -> None:
    for key, value in list(config.content.items()):
        if key in KEYS and value is not None:
            path, convert = KEYS[key]
            with config.reading(key):
                converted = convert(value)
                if converted is None:
                    config.rest(key, "the default")
                else:
                    config.fact(path, converted, key)
        elif key in CHOOSES and key not in config.settled:
            harmless, what = CHOOSES[key]
            if value is None or value in ("", [], {}) or value in harmless:
                config.rest(key, "it chooses nothing")
            else:
                config.refuse(key, what)
        elif key in UNREAD and (value is None or value in UNREAD[key]):
            config.rest(key, "the default")
        elif _speaks_of_roles(key) and key not in config.settled and value not in (None, "", [], {}):
            config.refuse(key, "no key of TRL, and its name says that it chooses a model, a role or a layout")


def _speaks_of_roles(key: str) -> bool:
    return not known_key(key) and bool(_ROLE.fullmatch(key))
