"""Every model of the catalogue: total and modules exactly, or refused; never wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vramcast.catalog.models import model_config, model_names
from vramcast.errors import Refused
from vramcast.models.describe import build_layout
from vramcast.models.layout import MODULES

_LINES = (Path(__file__).parent / "modules.jsonl").read_text(encoding="utf-8").splitlines()
COUNTED = {row["id"]: row["modules"] for row in map(json.loads, _LINES)}
"""model → elements by module, counted over transformers' classes on the meta device, or from the checkpoint's code"""
REFUSED = {"microsoft/Phi-3.5-vision-instruct": "phi3_v", "moonshotai/Kimi-K3": "kimi_k3"}
"""models without an exact count: their code is in no release, so nothing can be checked"""


def test_the_catalogue_is_whole() -> None:
    names = model_names()
    assert len(names) == 361
    assert len(COUNTED) == 359
    assert {*COUNTED, *REFUSED} == set(names)
    assert len({model_config(name).config["model_type"] for name in names}) == 104


@pytest.mark.parametrize("name", COUNTED)
def test_exact(name: str) -> None:
    row = model_config(name)
    layout = build_layout(row.id, row.config, row.where)
    assert layout.params == row.params == sum(COUNTED[name].values())
    assert layout.modules() == {module: COUNTED[name][module] for module in MODULES if module in COUNTED[name]}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    row = model_config(name)
    assert row.params is None
    with pytest.raises(Refused, match=f"unknown model type '{REFUSED[name]}'"):
        build_layout(row.id, row.config, row.where)


@pytest.mark.parametrize("name", COUNTED)
def test_published_and_exact_differ_for_a_reason(name: str) -> None:
    row = model_config(name)
    if row.published is not None and row.published != row.params:
        assert row.reason


def test_active_parameters_of_mixtures() -> None:
    """Mixtral 8x7B by hand: 8 experts of 3 × 4096 × 14336, two of them used, in 32 layers."""
    row = model_config("mistralai/Mixtral-8x7B-Instruct-v0.1")
    layout = build_layout(row.id, row.config, row.where)
    idle = 32 * 6 * 3 * 4096 * 14336
    assert layout.params - layout.active_params == idle
    assert layout.active_params == 12_879_925_248
    dense = model_config("Qwen/Qwen2.5-7B")
    layout = build_layout(dense.id, dense.config, dense.where)
    assert layout.active_params == layout.params


def test_names_are_unique() -> None:
    for name in ("Qwen/Qwen2.5-7B", "deepseek-ai/DeepSeek-V3.2-Exp", "meta-llama/Llama-3.2-11B-Vision-Instruct"):
        row = model_config(name)
        layout = build_layout(row.id, row.config, row.where)
        names = [full for block in layout.blocks for full, _ in block.names()]
        assert len(names) == len(set(names))
