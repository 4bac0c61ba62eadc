"""Eager attention, worked by hand on TinyLlama's shapes: 32 heads of 64, 4 of them with keys; 2 x 1024 tokens, bf16."""

from __future__ import annotations

import pytest
from tests.golden.test_recipes import HIDDEN, KV, LAYERS, LOSS, TOKENS, ask
from tests.jobs import terms

from vramcast.cli import main

HEADS, LENGTH = 32, 1024
SCORES = TOKENS * HEADS * LENGTH
"""numbers in the scores of a layer: 67,108,864"""
FORWARD, BACKWARD = ("forward", "last block", "steady"), ("backward", "first block", "steady")


def test_what_a_layer_keeps() -> None:
    """Flash keeps query, key, value, its output and four bytes a head. Eager keeps the query by head, keys and values
    expanded to all heads, the output, and the softmax twice: in fp32, and in 16 bits for the product."""
    eager, flash = (terms(ask("transformers", attention=kernel)[LOSS]) for kernel in ("eager", "flash"))
    flash_keeps = TOKENS * (2 * (HIDDEN + 2 * KV + HIDDEN) + 4 * HEADS)
    eager_keeps = TOKENS * 2 * (HIDDEN + 2 * HIDDEN + HIDDEN) + SCORES * (4 + 2)
    assert eager["activations.saved"] - flash["activations.saved"] == LAYERS * (eager_keeps - flash_keeps)


def test_the_worst_of_a_recomputed_layer_is_softmax_backward() -> None:
    """Its gradient comes in fp32 by a copy; it makes a product and a result, in fp32 as well, beside the softmax in
    fp32. The gradient in 16 bits that was copied is gone, and so is the softmax in 16 bits: the block holds the weights
    only until its forward is over."""
    phases = ask("transformers", attention="eager", recompute="full")
    block = terms(phases[BACKWARD])["activations.block"]
    assert block > SCORES * 4 * 4
    flash = terms(ask("transformers", attention="flash", recompute="full")[BACKWARD])["activations.block"]
    assert block - flash > SCORES * 4 * 3


def test_the_mask_is_there_while_blocks_run() -> None:
    """2 bytes for every pair of tokens of a sequence; checkpoints keep it for the recomputation."""
    mask = 2 * TOKENS * LENGTH
    plain, kept = ask("transformers", attention="eager"), ask("transformers", attention="eager", recompute="full")
    for instant in (FORWARD, LOSS, BACKWARD):
        usual = terms(ask("transformers", attention="flash")[instant])["inputs"]
        assert terms(plain[instant])["inputs"] - usual == (mask if instant == FORWARD else 0)
        assert terms(kept[instant])["inputs"] - usual == mask


def test_it_is_not_modelled_where_the_model_generates(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "check --model Qwen/Qwen2.5-0.5B --set algorithm=inference --set attention=eager"
    assert main(asked.split()) == 2
    assert capsys.readouterr().err == (
        "error: attention = eager is modelled in training, and not yet where the model generates\n"
        "  from     --set\n"
        "  allowed  flash, efficient\n"
    )
