"""Ask the articles' rules as a user does: `vramcast check --rules article ... --json`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from tests.jobs import check, settings

BF16_STATIC = ("weights", "gradients", "optimizer: fp32 master", "optimizer: momentum", "optimizer: variance")
OPTIMIZER = BF16_STATIC[2:]


def by_rules(model: str, gpu: str = "", gpus: int = 1, **values: object) -> dict[str, Any]:
    """The JSON of the rules on a job."""
    card = ["--gpu", gpu] if gpu else []
    return check("--rules", "article", "--model", model, "--gpus", str(gpus), *card, *settings(**values))


def sums(answer: dict[str, Any]) -> dict[str, Decimal]:
    """Phase → its sum in the article's GB."""
    return {phase["name"]: Decimal(phase["gb"]) for phase in answer["phases"]}


def parts(answer: dict[str, Any], phase: int = 0, role: str = "policy") -> dict[str, Decimal]:
    """Part → GB, of one role in one sum."""
    terms = answer["phases"][phase]["terms"]
    return {term["name"]: Decimal(term["gb"]) for term in terms if term["role"] == role}


def static(answer: dict[str, Any]) -> Decimal:
    """Everything counted by parameters, of all roles."""
    terms = answer["phases"][0]["terms"]
    return sum((Decimal(term["gb"]) for term in terms if term["unit"] == "GB = 10^9"), Decimal(0))
