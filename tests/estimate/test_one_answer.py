"""One answer a quantity: weights, caches, shares and adapters are the same in `check` and in `explain --arch`, for 50
models of every kind in several layouts."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pytest
from tests.group_jobs import terms_of
from tests.random_jobs import said

from vramcast.catalog.models import model_config, model_names
from vramcast.estimate import forecast
from vramcast.models.arch import build_arch, has_forward, has_head
from vramcast.report.arch import ArchReport, arch_report
from vramcast.types.result import PhaseBytes

CARD = {"gpu": "h200-sxm-141gb"}
RANKS = 8
SHARDED = ("fsdp1", "fsdp2")


def _forecast(name: str) -> bool:
    row = model_config(name)
    plain = "quantization_config" not in row.config and has_head(row.config, name)
    return plain and row.params is not None and has_forward(build_arch(row.id, row.config, row.where))


@cache
def models() -> list[str]:
    """One model of every type that has a whole forecast, and others up to 50; always the same."""
    found: dict[str, list[str]] = {}
    for name in model_names():
        if _forecast(name):
            found.setdefault(str(model_config(name).config["model_type"]), []).append(name)
    random = Random(8)
    first = [random.choice(names) for names in found.values()]
    rest = sorted(name for names in found.values() for name in names if name not in first)
    return [*first, *random.sample(rest, max(50 - len(first), 0))]


def explained(values: dict[str, Any]) -> ArchReport:
    return arch_report(said(values))


def phases(values: dict[str, Any]) -> list[PhaseBytes]:
    return forecast(said({**CARD, **values}), cards=False).groups[0].phases


def term(found: list[PhaseBytes], name: str, instant: str) -> int:
    phase = next(phase for phase in found if phase.instant == instant)
    return terms_of(phase, "policy").get(name, 0)


def test_there_are_fifty() -> None:
    assert len(models()) >= 50


@pytest.mark.parametrize("name", models())
def test_one_answer(name: str) -> None:
    base = {"model": name, "weights_dtype": "bf16"}
    length = 1000
    row = model_config(name)
    if build_arch(row.id, row.config, row.where).ends.without:
        pytest.skip("forecast in training only: where it generates it refuses")
    whole = explained({**base, "seq_len": length})
    generated = phases({**base, "algorithm": "inference", "micro_batch": 3, "prompt_len": 10, "seq_len": length})
    assert term(generated, "weights", "decode") == whole.bytes
    assert whole.kept is not None
    assert term(generated, "kv_cache", "decode") == 3 * whole.kept.sequence_bytes
    training = {**base, "algorithm": "sft", "framework": "trl==1.16.0", "seq_len": 128}
    for shard in SHARDED:
        layout = {"gpus": RANKS, "shard": shard, "autocast": False}
        found = phases({**training, **layout, "compute_dtype": "bf16"})
        assert term(found, "weights", "update") == explained({**base, "gpus": RANKS, "shard": shard}).ranks[0].bytes
    adapted = {"tuning": "lora", "lora.rank": 4, "lora.targets": ["all-linear"], "lora.dropout": 0.0}
    share = explained({**base, **adapted}).adapter
    assert share is not None
    assert term(phases({**training, **adapted}), "adapters", "update") == 4 * share.trainable
    packed = {"quant.kind": "nf4"}
    found = phases({**base, **packed, "algorithm": "inference", "seq_len": 64})
    assert term(found, "weights", "decode") == explained({**base, **packed}).bytes
