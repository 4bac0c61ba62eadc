"""Which loss a framework can be asked for: an answer or a reason, for every combination."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.random_jobs import Values, said

from vramcast.catalog.frameworks import frameworks
from vramcast.errors import Refused
from vramcast.estimate import forecast
from vramcast.types.result import Forecast

GRPO: Values = {"prompt_len": 64, "response_len": 64, "group": 8, "engine.kind": "none", "gpus": 1}
RELEASES = [f"{row.name}=={version}" for row in frameworks() for version in row.versions]
HAVE_A_FUSED_HEAD = {"trl==1.16.0", "trl==1.15.0", *(text for text in RELEASES if text.startswith("verl"))}


def job(framework: str, algorithm: str, loss: str) -> Values:
    work = GRPO if algorithm == "grpo" else {"seq_len": 128}
    model = {"model": "Qwen/Qwen2.5-0.5B", "gpu": "h100-sxm-80gb", "micro_batch": 8}
    return {**model, **work, "framework": framework, "algorithm": algorithm, "loss": loss}


@pytest.mark.parametrize("loss", ["full", "fused", "fp32", "chunked", "compiled", "vocab_parallel"])
@pytest.mark.parametrize("algorithm", ["inference", "pretrain", "sft", "grpo"])
@pytest.mark.parametrize("framework", RELEASES)
def test_every_combination_is_answered_or_refused(framework: str, algorithm: str, loss: str) -> None:
    answer: Forecast | None = None
    with suppress(Refused):
        answer = forecast(said(job(framework, algorithm, loss)), cards=False)
    assert answer is None or answer.peak.bytes > 0
    assert answer is not None or loss != "full" or algorithm == "inference"


@pytest.mark.parametrize("framework", RELEASES)
def test_a_fused_head_is_one_that_is_known(framework: str) -> None:
    asked = said(job(framework, "grpo", "fused"))
    if framework in HAVE_A_FUSED_HEAD:
        assert forecast(asked, cards=False).peak.bytes > 0
        return
    with pytest.raises(Refused) as caught:
        forecast(asked, cards=False)
    (mistake,) = caught.value.mistakes
    assert mistake.fact == f"loss = fused: no fused head of {framework} is known"
    assert mistake.context["known"] == "trl since 1.15 (tiles), verl (chunks of tokens)"


def test_the_refusal_stands_beside_the_other_mistakes() -> None:
    with pytest.raises(Refused) as caught:
        forecast(said({**job("transformers", "pretrain", "fused"), "engine.tp": 5}), cards=False)
    assert len(caught.value.mistakes) == 2
