"""What the rules read of a job: the user's values, then the framework's defaults, but never a framework's dtypes.

The articles take 16-bit weights for granted, so a framework that loads fp32 is a difference to be shown, not an input.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from vramcast.catalog.frameworks import defaults, parse_framework
from vramcast.errors import Mistakes, refuse
from vramcast.rules_of_thumb.shapes import Shape, find_shape
from vramcast.types.job import Fact, Origin, Understanding, settings_of
from vramcast.types.paths import Value, find, write_value
from vramcast.types.settings import Settings

ALGORITHMS = ("inference", "sft", "grpo", "ppo")
_READ = (
    "algorithm", "model", "tuning", "weights_dtype", "quant.kind", "optimizer", "micro_batch", "seq_len", "prompt_len",
    "response_len", "group", "recompute", "reference.kind", "reward.kind", "critic.kind", "offload.optimizer",
    "offload.weights", "engine.kv_dtype", "shard", "tp", "pp", "gpus", "gpu",
)  # fmt: skip
"""Paths that a rule reads, of any role."""
_OWN = ("weights_dtype", "engine.kv_dtype", "quant.kind")
"""Where the articles' own value stands unless the user says another."""
_RULE_3 = {"reference.kind": "copy", "reward.kind": "model", "critic.kind": "model"}


class Question(Struct, frozen=True):
    """A job for the rules: what counts, and what was said but is no part of any rule."""

    facts: dict[str, Fact]
    unread: list[str]

    def role(self, role: str) -> Settings:
        """The complete settings of one role."""
        return settings_of(self._values(), role)

    def shape(self, role: str = "policy") -> Shape:
        """The model of a role.

        Raises:
            Refused: unknown.
        """
        return find_shape(str(self.role(role).model))

    def inputs(self) -> list[tuple[str, Value, str]]:
        """(path, value as a file holds it, origin) of everything that a rule reads."""
        return [
            (name, write_value(find(name)[1], fact.value), str(fact.origin))
            for name, fact in self.facts.items()
            if find(name)[1].name in self._paths() and fact.value is not None
        ]

    def _paths(self) -> frozenset[str]:
        """Paths that count: a prompt without a response length (or the reverse) says nothing of a sequence."""
        settings = self.role("policy")
        whole = settings.prompt_len and settings.response_len
        return frozenset(_READ) - ({"seq_len"} if whole else {"prompt_len", "response_len"})

    def _values(self) -> dict[str, Value]:
        return {path: fact.value for path, fact in self.facts.items()}


def question(said: Understanding, resolved: Mapping[str, Fact] | None = None) -> Question:
    """The job as the rules read it. `resolved`: the facts of the exact job, so that both answer the same question.

    Raises:
        Refused: no model, an algorithm without rules, and every mistake of the flags and files.
    """
    asked = said.winners()
    mistakes = Mistakes(said.mistakes)
    for missing in said.missing:
        if missing.path not in asked and missing.path in _READ:
            mistakes.add(f"{missing.path} is not known", **{"from": missing.where, "help": f"--set {missing.path}=..."})
    if "model" not in asked or not asked["model"].value:
        mistakes.add("no model given", help="--model NAME; article/7b and article/72b are the articles' own")
    algorithm = str(asked["algorithm"].value) if "algorithm" in asked else "sft"
    if algorithm not in ALGORITHMS:
        mistakes.add(f"the articles have no rule for algorithm = {algorithm}", allowed=", ".join(ALGORITHMS))
    mistakes.done()
    weaker = resolved if resolved is not None else _defaults(asked, algorithm)
    facts = {**asked, **{path: fact for path, fact in weaker.items() if path not in asked and path not in _OWN}}
    if resolved is not None and "seq_len" in resolved:  # prompt_len + response_len
        facts["seq_len"] = resolved["seq_len"]
    if algorithm == "ppo":
        for path, value in _RULE_3.items():
            facts.setdefault(path, Fact(path, value, Origin("rule 3")))
    return Question(facts, [path for path in asked if find(path)[1].name not in (*_READ, "framework")])


def _defaults(asked: Mapping[str, Fact], algorithm: str) -> dict[str, Fact]:
    framework = asked["framework"].value if "framework" in asked else None
    release = parse_framework(str(framework or ("transformers" if algorithm == "inference" else "trl")))
    values = {path: fact.value for path, fact in asked.items()}
    return {fact.path: fact for fact in defaults(release.name, release.version, algorithm, values)}


def lengths(settings: Settings) -> int:
    """s: tokens of a whole sequence.

    Raises:
        Refused: a packed budget, which the rules do not know.
    """
    if settings.token_budget:
        raise refuse("the rules count sequences: token_budget has no rule", use="micro_batch and seq_len")
    if settings.prompt_len and settings.response_len:
        return settings.prompt_len + settings.response_len
    return settings.seq_len


def generated(settings: Settings) -> int:
    """b of a KV cache: the sequences in flight, at least one whole group."""
    return max(settings.micro_batch, settings.group) if settings.algorithm in ("grpo", "ppo") else settings.micro_batch
