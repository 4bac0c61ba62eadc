"""Contradictions of a job with packed weights."""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.algorithms import learns
from vramcast.errors import Mistakes
from vramcast.estimate.packing import TRAINED, quantisation_of
from vramcast.models.arch import Arch
from vramcast.models.quant.quantisation import Quantisation
from vramcast.types.job import Fact
from vramcast.types.settings import ADAPTED, Settings

_PLAIN = "name the model's own checkpoint in 16 bits instead"


def check_packing(
    settings: Settings, arch: Arch, own: Quantisation | None, facts: Mapping[str, Fact], mistakes: Mistakes
) -> set[str]:
    """Collect what does not go together; gives the paths with mistakes."""
    origin = str(facts["quant.kind"].origin) if "quant.kind" in facts else "vramcast default"
    tuning = str(facts["tuning"].origin) if "tuning" in facts else "vramcast default"
    kind = settings.quant_kind
    before = len(mistakes.found)
    if own is not None and kind != own.kind:
        mistakes.add(
            f"quant.kind = {kind}, and the checkpoint is quantised already: {own.label}",
            **{"from": origin, "allowed": own.kind, "help": _PLAIN},
        )
    elif kind == "none" and settings.tuning == "qlora":
        mistakes.add(
            "tuning = qlora needs a packed base, and quant.kind = none",
            **{"tuning": tuning, "quant.kind": origin, "allowed": ", ".join(TRAINED)},
        )
    elif kind != "none":
        algorithm = str(facts["algorithm"].origin) if "algorithm" in facts else ""
        _check_training(settings, own, origin, tuning, algorithm, mistakes)
        group = facts.get("quant.group") if own is None else None
        if own is None and settings.quant_kind == "mxfp4":
            mistakes.add(
                f"quant.kind = mxfp4 packs the experts of a model, and {arch.name} has none",
                **{"from": origin, "allowed": "another kind, or none"},
            )
        with mistakes.collect():
            _check_group(settings, arch, own, str(group.origin) if group is not None else origin)
    return {"quant.kind", "tuning"} if len(mistakes.found) > before else set()


def _check_training(
    settings: Settings, own: Quantisation | None, origin: str, tuning: str, algorithm: str, mistakes: Mistakes
) -> None:
    kind = settings.quant_kind
    if not learns(settings):
        return
    if settings.tuning not in ADAPTED:
        allowed = ["tuning = qlora"] if kind in TRAINED else []
        allowed += ["quant.kind = none"] if own is None else []
        mistakes.add(
            f"packed weights do not train: quant.kind = {kind} with tuning = {settings.tuning}",
            **{"quant.kind": origin, "tuning": tuning, "algorithm": algorithm, "allowed": ", or ".join(allowed),
               "help": _PLAIN if own is not None else ""},
        )  # fmt: skip
    elif kind not in TRAINED:
        mistakes.add(
            f"adapters on a base of quant.kind = {kind} are not modelled yet",
            **{"from": origin, "modelled": ", ".join(TRAINED)},
        )
    elif settings.shard != "none" and settings.gpus > 1:
        mistakes.add(
            f"shard = {settings.shard} of packed weights is not modelled yet",
            **{"quant.kind": origin, "tuning": tuning, "modelled": "shard = none: every GPU has all of them"},
        )


def _check_group(settings: Settings, arch: Arch, own: Quantisation | None, origin: str) -> None:
    """A layer whose inputs are no whole groups would silently stay as it is."""
    quantisation = quantisation_of(settings, own, arch.model_type)
    assert quantisation is not None
    quantisation.check(arch.layout, origin)
