"""Facts → a complete, checked job: the framework's defaults, then the path table's, each shown as an assumption."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, structs

from vramcast.algorithms import algorithm_of, learns
from vramcast.catalog.frameworks import defaults, parse_framework, recipe, usual_framework
from vramcast.catalog.gpus import Gpu, find_gpu, typical_gpu
from vramcast.catalog.models import ModelRow, model_config
from vramcast.errors import Mistakes, refuse
from vramcast.estimate.causes import absent
from vramcast.estimate.checks import check, check_model, rests_on_said
from vramcast.estimate.derive import derived
from vramcast.estimate.loss_checks import check_loss
from vramcast.estimate.measured import known_beside, what_was_measured
from vramcast.estimate.modelled import NOTHING_MORE, Also, not_modelled
from vramcast.estimate.packing import implied_facts
from vramcast.estimate.packing_checks import check_packing
from vramcast.models.arch import Arch, build_arch, has_forward, no_forward
from vramcast.models.quant.quantisation import Quantisation
from vramcast.types.job import Fact, Job, Origin, Understanding, settings_of
from vramcast.types.paths import PATHS, Value, write_value
from vramcast.types.recipe import Recipe
from vramcast.types.result import Assumption, Ignored, UnreadKey
from vramcast.types.settings import Settings

QUANTISED = ("quantization_config", "compression_config")
"""fields of a config.json that say how its weights are packed"""


class Resolved(Struct, frozen=True, kw_only=True):
    """A job that every question has an answer for."""

    job: Job
    facts: dict[str, Fact]
    """path → the fact that counts, framework defaults included"""
    settings: Settings
    """the policy's"""
    row: ModelRow
    arch: Arch
    quantisation: Quantisation | None
    """the checkpoint's own"""
    gpu: Gpu
    card_named: bool
    sdpa: bool
    """attention goes through scaled_dot_product_attention: windows need masks there"""
    recipe: Recipe
    framework: str
    assumptions: list[Assumption]
    unread: list[UnreadKey]
    ignored: list[Ignored]
    warnings: list[str]

    def role(self, role: str) -> Settings:
        """The complete settings of one role."""
        return settings_of(_values(self.facts), role)


def resolve(said: Understanding, also: Also = NOTHING_MORE, *, programs: bool = True) -> Resolved:
    """Fill in what nobody said and check the whole.

    `also`: values that are known beside those of the formulas. `programs`: types whose activations no formula knows are
    refused.

    Raises:
        Refused: with every mistake that was found.
    """
    mistakes = Mistakes(said.mistakes)
    asked = said.winners()
    gpu: Gpu | None = None
    model: _Model | None = None
    with mistakes.collect():
        _require(said, asked)
    with mistakes.collect():
        gpu = find_gpu(str(asked["gpu"].value)) if "gpu" in asked and asked["gpu"].value else None
    with mistakes.collect():
        model = _model(asked, programs) if "model" in asked else None
    framework = _framework(asked, mistakes)
    arch, own = (model.arch, model.quantisation) if model is not None else (None, None)
    implied = {fact.path: fact for fact in implied_facts(asked, own, model.row.where if model is not None else "")}
    warnings: list[str] = []
    sdpa = True
    filled = {**implied, **asked}
    if framework is not None:
        filled = _with_framework(filled, framework, warnings)
        sdpa = "attention" not in filled or filled["attention"].value != "flash"
        filled = derived(filled, arch, gpu)
    _check(asked, filled, model, gpu, warnings, mistakes, also, complete=framework is not None)
    mistakes.done()
    assert model is not None  # a job without a model was a mistake
    settings = settings_of(_values(filled))
    name, version, _ = parse_framework(str(filled["framework"].value))
    behaviour = recipe(name, version, _complete(settings))
    if programs and behaviour.experts_apart and model.arch.has_experts and model.arch.measured is None:
        raise refuse(
            f"the experts of {model.arch.name} under {name} {version} are not modelled yet: Transformers 4 runs them "
            "one by one",
            **{"from": str(filled["framework"].origin), "help": f"--set framework={name}: its newest version"},
        )
    return Resolved(
        job=said.job(),
        facts=filled,
        settings=settings,
        row=model.row,
        arch=model.arch,
        quantisation=own,
        gpu=gpu or typical_gpu(),
        card_named=gpu is not None,
        sdpa=sdpa,
        recipe=behaviour,
        framework=name,
        assumptions=[
            *_stands_for(model.row),
            *_without(model.arch, settings),
            *_assumptions(asked, filled, settings, behaviour),
        ],
        unread=[UnreadKey(item.key, item.where) for item in said.unread],
        ignored=_ignored(said),
        warnings=[*said.warnings, *warnings, *what_was_measured(model.arch)],
    )


def _require(said: Understanding, asked: Mapping[str, Fact]) -> None:
    mistakes = Mistakes()
    if "model" not in asked and not said.misread:
        mistakes.add("no model given", help="--model NAME, or a config that names one; `vramcast list models`")
    for missing in said.missing:
        if missing.path not in asked:
            mistakes.add(f"{missing.path} is not known", **{"from": missing.where, "help": f"--set {missing.path}=..."})
    mistakes.done()


def _values(facts: Mapping[str, Fact]) -> dict[str, Value]:
    return {path: fact.value for path, fact in facts.items()}


def _framework(asked: Mapping[str, Fact], mistakes: Mistakes) -> Fact | None:
    """The framework that was said, or the one of the job's kind; None if there is no such framework or version."""
    if "framework" in asked and asked["framework"].value:
        before = len(mistakes.found)
        with mistakes.collect():
            parse_framework(str(asked["framework"].value))
        return asked["framework"] if len(mistakes.found) == before else None
    release = parse_framework(usual_framework(asked))
    return Fact("framework", f"{release.name}=={release.version}", Origin("no config: the newest rows of its kind"))


def _with_framework(asked: Mapping[str, Fact], framework: Fact, warnings: list[str]) -> dict[str, Fact]:
    release = parse_framework(str(framework.value))
    filled = {**asked, "framework": framework}
    algorithm = asked["algorithm"].value if "algorithm" in asked else "sft"
    for fact in defaults(release.name, release.version, str(algorithm), _values(filled)):
        filled.setdefault(fact.path, fact)
    warnings += [release.warning] if release.warning else []
    return filled


def _check(
    asked: Mapping[str, Fact],
    filled: Mapping[str, Fact],
    model: _Model | None,
    gpu: Gpu | None,
    warnings: list[str],
    mistakes: Mistakes,
    also: Also,
    *,
    complete: bool,
) -> None:
    """Collect what does not go together, and what is not modelled of the rest.

    Where the framework is not known (not `complete`) its defaults are not either: what does not go with one of them is
    no mistake yet.
    """
    settings = settings_of(_values(filled))
    found = Mistakes()
    contradicted: set[str] = set()
    if model is not None:
        contradicted = check_model(settings, model.arch, filled, warnings, found)
    check(settings, filled, gpu, warnings, found)
    if model is not None:
        contradicted |= check_packing(settings, model.arch, model.quantisation, filled, found)
    behaviour = Recipe()
    if complete:
        name, version, _ = parse_framework(str(filled["framework"].value))
        behaviour = recipe(name, version, _complete(settings))
        contradicted |= check_loss(settings, behaviour, filled, found)
        if not also and behaviour.cross_entropy == "flash" and settings.logprob_entropy in ("compiled", "eager"):
            also = {"entropy": ("grad",)}
    if model is not None:
        also = {**also, **known_beside(model.arch)}
    mistakes.found += [mistake for mistake in found.found if complete or rests_on_said(mistake)]
    left = {path: fact for path, fact in filled.items() if path not in contradicted}
    not_modelled(asked, left, settings, warnings, mistakes, also, alone=behaviour.fsdp_alone)


class _Model(NamedTuple):
    row: ModelRow
    arch: Arch
    quantisation: Quantisation | None


def _model(asked: Mapping[str, Fact], programs: bool) -> _Model:
    fact = asked["model"]
    if not isinstance(fact.value, str) or not fact.value.strip():
        raise refuse("no model given", **{"from": str(fact.origin)})
    row = model_config(fact.value)
    arch = _arch(row, programs)
    return _Model(row, arch, _own_quantisation(row))


def _arch(row: ModelRow, programs: bool) -> Arch:
    """The model with its program, or with what stands for it; without if that is not asked for."""
    if programs and row.measured:
        from vramcast.models.saved import saved_arch

        return saved_arch(row.measured, row.id, row.where)
    arch = build_arch(row.id, row.config, row.where)
    if programs and not has_forward(arch):
        raise no_forward(arch)
    return arch


def _own_quantisation(row: ModelRow) -> Quantisation | None:
    """What the config says; the reader of methods is not imported for the models that say nothing."""
    if not any(word in row.config for word in QUANTISED):
        return None
    from vramcast.models.quant.read import read_quantisation

    return read_quantisation(row.config, row.where)


def _complete(settings: Settings) -> dict[str, Value]:
    return {PATHS[name].name: value for name, value in _by_path(settings)}


def _by_path(settings: Settings) -> list[tuple[str, Value]]:
    values = structs.asdict(settings)
    return [(name, values[path.attribute]) for name, path in PATHS.items()]


def _assumptions(
    asked: Mapping[str, Fact], filled: Mapping[str, Fact], settings: Settings, behaviour: Recipe
) -> list[Assumption]:
    values = dict(_by_path(settings))
    used = algorithm_of(settings.algorithm).paths
    shown = [path for path in PATHS if path in filled or path in used]
    return [
        Assumption(
            path,
            write_value(PATHS[path], values[path]),
            str(filled[path].origin) if path in filled else "vramcast default",
        )
        for path in shown
        if path not in asked
        and path in used
        and values[path] is not None
        and not absent(path, settings, alone=behaviour.fsdp_alone)
    ]


def _without(arch: Arch, settings: Settings) -> list[Assumption]:
    """That packages whose kernels the class would take are not installed, where the class runs at all."""
    names = arch.ends.without if learns(settings) else ""
    why = "the class's own PyTorch is counted, which needs more than kernels"
    return [Assumption(names, "not installed", why)] if names else []


def _stands_for(row: ModelRow) -> list[Assumption]:
    """That the model stands for the name that was given, if it does."""
    return [Assumption("model", row.id, row.assumed)] if row.assumed else []


def _ignored(said: Understanding) -> list[Ignored]:
    return [
        Ignored(lost.path, lost.value, str(lost.origin), won.value, str(won.origin)) for lost, won in said.overridden()
    ]
