"""Parameter by parameter against transformers' own classes (extra `trace`); says so when it cannot."""

from __future__ import annotations

import importlib
import math
import random
import sys
from pathlib import Path

import pytest
from tests.cli.cases import run
from tests.models import classes

from vramcast.errors import Refused
from vramcast.models import counted
from vramcast.models.counted import ClassCount, counted_layout
from vramcast.models.types import family_of


def _need_transformers() -> None:
    """Skip, with the reason, where the classes cannot be built."""
    for name in ("torch", "transformers"):
        try:
            importlib.import_module(name)
        except ImportError:
            pytest.skip(f"not compared with transformers' classes: no {name} (extra `trace`)")


@pytest.mark.trace
def test_every_class_has_our_tensors() -> None:
    _need_transformers()
    found = [classes.compare(row) for row in classes.smallest_of_each_type()]
    built = [one for one in found if one.differ is not None]
    assert len({one.class_name for one in built}) >= 60
    assert {one.model_type: one.differ[:3] for one in built if one.differ} == {}


def test_without_transformers_it_is_skipped_and_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pytest.skip.Exception, match="not compared with transformers' classes: no torch"):
        test_every_class_has_our_tensors()


def test_a_type_without_a_class_is_not_counted_as_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: object) -> tuple[str, classes.Tensors]:
        raise LookupError("no class for qwen")

    monkeypatch.setattr(classes, "theirs", nothing)
    one = classes.compare(classes.model_config("Qwen/Qwen-7B"))
    assert (one.differ, one.why) == (None, "no class for qwen")


def test_a_missing_tensor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    row = classes.model_config("Qwen/Qwen2.5-0.5B")
    ours = classes.build_layout(row.id, row.config, row.where).tensors()
    changed = {**ours, "model.norm.weight": (1,), "extra": (2, 3)}
    monkeypatch.setattr(classes, "theirs", lambda _: ("Fake", changed))
    assert classes.compare(row).differ == ["extra", "model.norm.weight"]


# --- every class of Transformers --------------------------------------------------------------------------------------

NOT_BUILT = {
    "gemma3n": "its vision tower is timm's, which is not installed",
    "fast_vlm": "its vision tower is timm's, which is not installed",
    "perception_lm": "its vision tower is timm's, which is not installed",
}
"""types whose class cannot be built here, and why"""


@pytest.mark.trace
@pytest.mark.filterwarnings("ignore")
def test_a_draw_of_all_classes_is_counted_exactly() -> None:
    """`python bench/classes.py` counts all of them."""
    _need_transformers()
    drawn = random.Random(3).sample([one for one in classes.entries() if one.kind not in NOT_BUILT], 40)
    found = {entry: classes.counted(entry) for entry in drawn}
    assert {entry.kind: one for entry, one in found.items() if one.how not in ("parts", "class")} == {}
    assert {one.how for one in found.values()} == {"parts", "class"}


@pytest.mark.trace
@pytest.mark.filterwarnings("ignore")
def test_adapters_of_a_counted_class_are_those_that_peft_makes() -> None:
    pytest.importorskip("peft", reason="not compared with PEFT (extra `trace`)")
    known = [one for one in classes.entries() if one.kind not in {*family_of(), *NOT_BUILT, *UNLIKE_PEFT}]
    drawn = random.Random(5).sample(known, 10)
    assert {one.kind: pair for one in drawn if len(set(pair := classes.adapted(one))) > 1} == {}


UNLIKE_PEFT = {
    "blip": "its head is one of a part, which PEFT takes for any linear layer",
    "diffusion_gemma": "its encoder shares the decoder's layers, and PEFT wraps both",
    "inkling_mm_model": "layers of three inputs: narrower than the rank of this test",
    "longcat_flash": "PEFT names its router's weight, which the class has elsewhere",
    "pp_formulanet": "PEFT finds no embedding",
    "qwen3_omni_moe_thinker": "PEFT takes whole layers of sound for linear ones, and fails",
    "zamba": "cut to four layers it is another model",
    "zamba2": "cut to four layers it is another model",
}
"""types whose adapters are not compared, and why"""
COUNT = ClassCount(
    class_name="NewForCausalLM",
    version="5.24.0",
    tensors=[
        ("model.embed.weight", (100, 8)),
        *((f"model.layers.{layer}.attn.q_proj.weight", (8, 8)) for layer in range(3)),
        ("model.layers.0.mlp.up_proj.weight", (16, 8)),
        *((f"model.layers.{layer}.mlp.experts.up_proj", (4, 16, 8)) for layer in (1, 2)),
        ("model.final.weight", (8,)),
    ],
    kinds={},
    layers="model.layers",
    embedding="model.embed",
    head="lm_head",
    tied=True,
    experts=2,
)


def test_a_count_becomes_the_layout_of_equal_layers() -> None:
    layout = counted_layout("m", {"model_type": "new"}, COUNT, "unknown model type 'new'")
    assert layout.tensors() == dict(COUNT.tensors)
    assert [(block.name, block.layers) for block in layout.blocks] == [
        ("embedding", ()),
        ("decoder: attention + mlp", (0,)),
        ("decoder: attention + routed_experts", (1, 2)),
        ("model.final", ()),
    ]
    assert (layout.tied, layout.params - layout.active_params) == (True, 2 * 2 * 16 * 8)
    assert "NewForCausalLM of transformers 5.24.0" in layout.counted


@pytest.fixture
def a_new_model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "nanochat", "torch_dtype": "bfloat16"}')
    return f"--model {path}"


def test_explain_says_that_the_class_was_counted(a_new_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.trace.classes.count_class", lambda config, cache: COUNT)
    shown = run(f"explain --arch --tensors {a_new_model}")
    assert shown.exit == 0, shown.stderr
    assert f"{sum(math.prod(shape) for _, shape in COUNT.tensors):,}" in shown.stdout
    assert "NewForCausalLM of transformers 5.24.0" in " ".join(shown.stdout.split())
    assert "2 × model.layers.*.mlp.experts.up_proj  4 × 16 × 8" in shown.stdout
    assert "kept by a sequence: not known" in shown.stdout


@pytest.mark.parametrize("more", ["--set tp=2", "--set engine.kind=vllm"])
def test_what_a_class_does_not_say_is_refused(a_new_model: str, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.trace.classes.count_class", lambda config, cache: COUNT)
    refused = run(f"explain --arch {a_new_model} {more}")
    assert refused.exit == 2
    assert "how model type nanochat is divided or held is not known" in refused.stderr


def test_without_the_extra_the_command_that_would_count_it_is_named(
    a_new_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vramcast.trace.process.find_spec", lambda name: None)
    refused = run(f"explain --arch {a_new_model}")
    assert refused.exit == 2
    assert "unknown model type 'nanochat'" in refused.stderr
    assert "pip install 'vramcast[trace]'" in refused.stderr


def test_types_that_bring_their_own_code_are_counted_or_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"(?s)unknown model type 'minicpmv'.*bring their own code"):
        classes.build_layout("m", {"model_type": "minicpmv"}, "m")
    listed = set(counted._types()["own code"]["types"])
    assert len(listed) >= 30
    assert len(listed & family_of().keys()) >= 9
    assert not any(counted.reading(kind) for kind in listed)


@pytest.mark.parametrize(
    "field",
    [
        "mtp_loss_scaling_factor", "moe_aux_loss_weight", "router_noise", "label_smoothing", "drop_path",
        "attn_dropout", "initializer_cutoff_factor", "embedding_init_std", "z_loss_weight", "router_bias_update_rate",
    ],
)  # fmt: skip
def test_fields_of_training_never_refuse(field: str) -> None:
    row = classes.model_config("HuggingFaceTB/SmolLM-135M")
    assert classes.build_layout("m", row.config | {field: 0.1}, "m").params == row.params


def test_a_field_that_may_be_a_size_still_refuses() -> None:
    row = classes.model_config("HuggingFaceTB/SmolLM-135M")
    for field in ("lossy_layers", "noises", "initial_width"):
        with pytest.raises(Refused, match=field):
            classes.build_layout("m", row.config | {field: 3}, "m")
