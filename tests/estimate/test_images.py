"""Batches with images and without: what of a tower learns, what it keeps, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.random_jobs import said

from vramcast.errors import Refused
from vramcast.estimate import forecast
from vramcast.types.result import Forecast

TEXT = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 768, "vocab_size": 8192, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
LLAVA = {
    "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "tie_word_embeddings": False,
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2,
        "intermediate_size": 256, "image_size": 56, "patch_size": 14, "num_channels": 3, "projection_dim": 64,
    },
}  # fmt: skip
JOB = {
    "gpu": "a100-sxm-80gb", "micro_batch": 2, "seq_len": 256, "accumulation": 1, "framework": "transformers==5.24.0",
    "weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": False, "recompute": "none", "labelled_frac": 1.0,
}  # fmt: skip
LANGUAGE = 2 * 8192 * 256 + 2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 768 + 2 * 256) + 256
"""embedding and head, two layers (queries and output, keys and values, the MLP, two norms), the last norm"""
LAYER = 4 * (128 * 128 + 128) + 2 * 128 * 256 + 256 + 128 + 4 * 128
"""of the tower: four projections with biases, two layers of the MLP, two norms"""
FRONT = 128 + 128 * 3 * 14 * 14 + 17 * 128 + 2 * 128
"""class, convolution, 16 positions and the class's, a norm"""
PROJECTOR = 128 * 256 + 256 + 256 * 256 + 256


def ask(folder: Path, **more: Any) -> Forecast:
    config = folder / "config.json"
    config.write_text(json.dumps(more.pop("config", LLAVA)))
    return forecast(said({"model": str(config), **JOB, **more}), cards=False)


def terms(found: Forecast, name: str, instant: str, when: str = "steady") -> dict[str, int]:
    phase = next(one for one in found.groups[0].phases if (one.name, one.instant, one.when) == (name, instant, when))
    return {term.name: term.bytes for term in phase.terms}


def test_what_does_not_run_gets_no_gradient_and_no_state(tmp_path: Path) -> None:
    step = terms(ask(tmp_path), "step", "update")
    assert step["gradients"] == 2 * LANGUAGE
    assert step["optimizer.state"] == 4 * LANGUAGE
    assert step["weights"] == 2 * (LANGUAGE + FRONT + 3 * LAYER + 2 * 128 + PROJECTOR)


def test_with_images_the_tower_learns_up_to_the_layer_that_is_read(tmp_path: Path) -> None:
    """LLaVA reads the last layer but one: the last one and the norm behind it get no gradient."""
    step = terms(ask(tmp_path, image_tokens=32), "step", "update")
    assert step["gradients"] == 2 * (LANGUAGE + FRONT + 2 * LAYER + PROJECTOR)


def test_adapters_are_made_in_the_tower_and_learn_with_images_only(tmp_path: Path) -> None:
    lora = {"tuning": "lora", "lora.rank": 8, "lora.targets": ["all-linear"]}
    language = 2 * 8 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 768))
    layer = 8 * (4 * (128 + 128) + 2 * (128 + 256))
    made = language + 3 * layer + 8 * ((128 + 256) + (256 + 256))
    text, seen = (terms(ask(tmp_path, image_tokens=tokens, **lora), "step", "update") for tokens in (0, 32))
    assert text["adapters"] == seen["adapters"] == 4 * made
    assert text["gradients"] == 4 * language
    assert seen["gradients"] == 4 * (made - layer)


def test_a_tower_keeps_its_layers_until_backward_is_over(tmp_path: Path) -> None:
    """Four images of 16 patches: 68 rows with the class tokens, 64 without."""
    norm = 2 * 128 + 8
    layer = 2 * 128 + norm + 3 * 2 * 128 + 2 * 128 + 4 * 2 + 2 * 128 + norm + 3 * 2 * 256
    """input, norm, q, k, v, attention and its sums, sum, norm, and in the MLP fc1, sigmoid, product"""
    front = 68 * (2 * 128 + 8) + 64 * 2 * 588
    """what the norm is given, its mean and deviation; 588 numbers of a patch's pixels"""
    projector = 64 * (2 * 128 + 2 * 2 * 256)
    """input, linear_1, GELU"""
    kept = front + 68 * 2 * layer + projector
    assert terms(ask(tmp_path, image_tokens=32), "backward", "loss")["activations.vision"] == kept


def test_pixels_are_there_as_long_as_the_batch(tmp_path: Path) -> None:
    found = ask(tmp_path, image_tokens=32)
    assert terms(found, "step", "update")["inputs"] == 4 * 3 * 56 * 56 * 4


def test_a_frozen_tower_keeps_nothing(tmp_path: Path) -> None:
    lora = {"tuning": "lora", "lora.rank": 8, "lora.targets": ["gate_proj"]}
    assert "activations.vision" not in terms(ask(tmp_path, image_tokens=32, **lora), "backward", "loss")


def test_the_first_block_learns_behind_a_tower_that_does(tmp_path: Path) -> None:
    lora = {"tuning": "lora", "lora.rank": 8, "recompute": "none"}
    alone, behind = (
        terms(ask(tmp_path, image_tokens=32, **lora, **{"lora.targets": targets}), "backward", "loss")
        for targets in (["gate_proj"], ["gate_proj", "fc1"])
    )
    assert behind["activations.saved"] > alone["activations.saved"]


def test_it_is_said_that_batches_are_text(tmp_path: Path) -> None:
    assumed = {one.path: (one.value, one.origin) for one in ask(tmp_path).assumptions}
    assert assumed["image_tokens"] == (0, "batches are text: towers are loaded and do not run")
    text = ask(tmp_path, config={"model_type": "llama", **TEXT})
    assert "image_tokens" not in {one.path for one in text.assumptions}


@pytest.mark.parametrize(
    ("config", "tokens", "told"),
    [
        ({"model_type": "llama", **TEXT}, 32, "has no vision tower"),
        (LLAVA, 30, "has 16"),
        (LLAVA, 272, "more than a sequence"),
        ({**LLAVA, "vision_feature_layer": [-2, -3]}, 32, "images of model type llava are not modelled yet"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, config: dict[str, Any], tokens: int, told: str) -> None:
    with pytest.raises(Refused, match=told):
        ask(tmp_path, config=config, image_tokens=tokens)


WINDOW = {"model_type": "mistral", **TEXT, "sliding_window": 64}


def test_a_window_shorter_than_the_sequence_makes_a_mask(tmp_path: Path) -> None:
    """One of true and false for all layers, and in each layer one of numbers, which is kept."""
    bound = ask(tmp_path, config=WINDOW)
    free = ask(tmp_path, config={**WINDOW, "sliding_window": None}, attention="efficient")
    kept = [terms(one, "backward", "loss")["activations.saved"] for one in (bound, free)]
    assert kept[0] - kept[1] == 2 * 2 * 2 * 256 * 256  # layers, bytes, sequences
    inputs = [terms(one, "forward", "last block")["inputs"] for one in (bound, free)]
    assert inputs[0] - inputs[1] == 2 * 256 * 256


def test_a_long_window_makes_none(tmp_path: Path) -> None:
    free, none = (ask(tmp_path, config={**WINDOW, "sliding_window": window}) for window in (257, None))
    assert terms(free, "backward", "loss") == terms(none, "backward", "loss")
