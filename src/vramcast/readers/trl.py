"""TRL YAML (`trl sft --config x.yaml`, and dpo, grpo): a flat mapping of the fields of three dataclasses and `env`."""

from __future__ import annotations

from vramcast.catalog.frameworks import parse_framework
from vramcast.readers import trl_rules as rules
from vramcast.readers.document import Document
from vramcast.readers.trl_keys import KEYS, NOT_MODELLED, OLD, known_key
from vramcast.readers.trl_native import NATIVE
from vramcast.readers.trl_sheet import Sheet
from vramcast.types.job import Fact, Origin, Understanding

__all__ = ["NATIVE", "read_trl"]

_SIGNS: dict[str, frozenset[str]] = {
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
}
"""Keys that only one trainer has (`beta` and `max_prompt_length`: that remain when it is not GRPO), by algorithm."""
_CONFIGS = {"grpo": "GRPOConfig", "kto": "KTOConfig", "reward": "RewardConfig", "dpo": "DPOConfig", "sft": "SFTConfig"}
_DPO_LOSSES = frozenset(
    "sigmoid sigmoid_norm hinge ipo exo_pair nca_pair robust bco_pair sppo_hard aot aot_unpaired apo_zero apo_down "
    "discopop".split()
)


def read_trl(document: Document, name: str) -> Understanding:
    """The facts of a TRL file; `name` is the file in origins.

    Raises:
        Refused: with every wrong value.
    """
    sheet = Sheet(document, name)
    kind = _assumed(sheet)
    _old_names(sheet)
    rules.model_arguments(sheet)
    _table(sheet)
    for rule in (
        rules.environment,
        rules.precision,
        rules.adapters,
        rules.lengths,
        rules.optimizer,
        rules.recompute,
        rules.generation,
        rules.evaluation,
    ):
        rule(sheet)
    rules.loss(sheet, kind)
    rules.roles(sheet, kind)
    return sheet.understanding()


def _assumed(sheet: Sheet) -> str:
    """What the file does not say: the version, and (from its keys) the trainer."""
    release = parse_framework("trl")
    origin = Origin(f"assumed: the newest TRL that is known, as {sheet.name} names no version")
    sheet.facts.append(Fact("framework", f"{release.name}=={release.version}", origin))
    kind, sign = _trainer(sheet)
    why = f"key {sign} of {_CONFIGS[kind]}" if sign else "no key of another trainer"
    where = sheet.where(sign) if sign else sheet.name
    sheet.facts.append(Fact("algorithm", kind, Origin(f"{where}: {why}")))
    return kind


def _trainer(sheet: Sheet) -> tuple[str, str]:
    """(algorithm, the key that tells it, or empty)."""
    for kind, signs in _SIGNS.items():
        for key in sheet.content:
            if key in signs or (kind == "grpo" and key.startswith("vllm_")):
                return kind, key
    losses = sheet.get("loss_type")
    if isinstance(losses, list) or str(losses) in _DPO_LOSSES:
        return "dpo", "loss_type"
    return "sft", ""


def _old_names(sheet: Sheet) -> None:
    for old, (key, when) in OLD.items():
        if old not in sheet.content:
            continue
        sheet.warn(old, f"is {when}; name your version with --set framework=trl==VERSION")
        if not key or (key != old and key in sheet.content):
            sheet.leave(old)
        elif key != old:
            sheet.take_as(old, key, sheet.content[old])


def _table(sheet: Sheet) -> None:
    for key, value in list(sheet.content.items()):
        if key in KEYS and value is not None:
            path, convert = KEYS[key]
            with sheet.reading(key):
                converted = convert(value)
                if converted is not None:
                    sheet.fact(path, converted, key)
        elif key in NOT_MODELLED:
            if value not in (None, False, "", [], {}, *NOT_MODELLED[key]):
                sheet.leave(key)
        elif not known_key(key):
            sheet.leave(key)
