"""What frameworks do with outputs, loss and norms by version, worked by hand on TinyLlama and Granite shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.jobs import Instant, check, phases, settings, terms

LAYERS, HIDDEN, KV, FFN, VOCAB = 22, 2048, 256, 5632, 32000
TOKENS = 2 * 1024
LOGITS = TOKENS * VOCAB  # 65,536,000
HIDDEN_BF16 = TOKENS * HIDDEN * 2  # 8,388,608
NORMS = (2 * LAYERS + 1) * HIDDEN  # 92,160
STEP, LOSS, BACKWARD = ("step", "update", "steady"), ("loss", "head", "steady"), ("backward", "first block", "steady")


def ask(framework: str, model: str = "TinyLlama/TinyLlama-1.1B-Chat-v1.0", **values: Any) -> dict[Instant, Any]:
    said: dict[str, Any] = {"weights_dtype": "bf16", "autocast": "false", "micro_batch": 2, "seq_len": 1024} | values
    arguments = settings(algorithm="sft", framework=framework, **{"loss": "full"} | said)
    return phases(check("--model", model, "--gpu", "a100-sxm-80gb", *arguments))


def test_a_loop_keeps_its_outputs() -> None:
    """Logits in bf16, and keys and values of all layers, until the next batch. The Trainer lets go of both."""
    loop, trainer = ask("loop"), ask("transformers", optimizer__impl="foreach")
    kept = 2 * LOGITS + LAYERS * TOKENS * 2 * KV * 2
    assert kept == 131_072_000 + 46_137_344
    assert terms(loop[STEP])["outputs"] == kept
    assert "outputs" not in terms(trainer[STEP])
    # While the last layer's backward runs its keys and values are part of what it saved.
    assert terms(loop[BACKWARD])["outputs"] == 2 * LOGITS


def test_recompute_makes_no_cache() -> None:
    assert terms(ask("loop", recompute="full")[STEP])["outputs"] == 2 * LOGITS


def test_adapters_behind_checkpoints_keep_the_embedded_tokens() -> None:
    """The graph that the outputs hold has them as a leaf, with a gradient."""
    loop = ask("loop", recompute="full", tuning="lora")
    assert terms(loop[STEP])["outputs"] == 2 * LOGITS + 2 * HIDDEN_BF16


def test_what_the_loss_shifts() -> None:
    """Since 4.49 labels; before, an fp32 copy of the logits; before 4.46 in the model, which drops the 16-bit ones."""
    logits = {version: terms(ask(f"loop=={version}", recompute="full")[LOSS])["logits"] for version in
              ("4.45.0", "4.46.0", "4.48.1", "4.49.0")}  # fmt: skip
    assert logits["4.46.0"] == logits["4.48.1"] == logits["4.49.0"] + 4 * LOGITS
    assert logits["4.45.0"] == logits["4.49.0"] + 2 * LOGITS


def fused_backward(**values: Any) -> int:
    """`logits` in the head's backward."""
    said = {"weights_dtype": "fp32", "autocast": "true", "micro_batch": 4, "recompute": "full", "loss": "fused"}
    return terms(ask("trl==1.16.0", **said | values)["backward", "loss", "first"])["logits"]


def test_a_fused_head_casts_rows_and_slices_before_it_lets_go_of_the_last_ones() -> None:
    """4096 rows and 32,768 columns a tile, so TinyLlama's 32,000 are one slice. For 4 x 1023 rows it is cast once. In
    the second chunk of 4 x 1535 it is cast again while the first copy is there, beside that chunk's rows."""
    copied, row = VOCAB * HIDDEN * 2, HIDDEN * 2
    # A token more: the last hidden state, the normed one, the row that is picked and its gradient, all in fp32; the
    # norm's rsqrt, a label, and three numbers of a row.
    token = 4 * HIDDEN * 4 + 4 + 8 + 3 * 4
    more = (6140 - 4092) * token + (4096 - 4092) * 32768 * 2  # and 4 rows more of logits
    once, twice = fused_backward(seq_len=1024), fused_backward(seq_len=1536)
    assert twice - once == more + (2 * copied + (6140 - 4096) * row) - (copied + 4092 * row)


def qlora(framework: str, **values: Any) -> dict[Instant, Any]:
    packed: dict[str, Any] = {"tuning": "qlora", "lora__rank": 8, "recompute": "full", "autocast": "true"}
    return ask(framework, **packed | values)


def test_norms_in_fp32_beside_packed_weights() -> None:
    """TRL up to 0.25 prepares the model for training, which makes all fp32, and casts embedding and head back."""
    old, new = qlora("trl==0.25.1"), qlora("trl==0.26.0")
    assert terms(old[STEP])["weights"] == terms(new[STEP])["weights"] + 2 * NORMS
    # Their outputs are fp32, and so is what a block gives: 21 of the 22 inputs that are kept. The embedding's is not.
    behind = ("backward", "loss", "steady")
    kept = terms(old[behind])["activations.saved"]
    assert kept == terms(new[behind])["activations.saved"] + 21 * HIDDEN_BF16 == 22 * HIDDEN_BF16 + 21 * HIDDEN_BF16


@pytest.mark.parametrize("values", [{"quant__kind": "int8"}, {"compute_dtype": "fp16"}, {"autocast": "false"}])
def test_only_4_bits_under_bf16_are_cast_back(values: dict[str, Any]) -> None:
    """Else embedding and head stay fp32 too."""
    whole = 2 * VOCAB * HIDDEN + NORMS
    found = qlora("trl==0.25.1", **values)[STEP]
    assert terms(found)["weights"] == terms(qlora("trl==0.26.0", **values)[STEP])["weights"] + 2 * whole


GRANITE = {
    "architectures": ["GraniteForCausalLM"], "model_type": "granite", "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS, "num_attention_heads": 32, "num_key_value_heads": 4, "intermediate_size": FFN,
    "vocab_size": VOCAB, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def granite(tmp_path: Path) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(GRANITE), encoding="utf-8")
    return str(file)


def test_granite_multiplies(granite: str) -> None:
    """TinyLlama with constants: one more hidden state at work, none kept; logits are there twice for a moment."""
    lora = {"tuning": "lora", "lora__targets": "q_proj,v_proj", "recompute": "full"}
    plain, scaled = ask("trl==1.6", **lora), ask("trl==1.6", granite, **lora)
    assert terms(plain[STEP]) == terms(scaled[STEP])
    # Under adapters the embedded tokens are a leaf, beside the multiple that the first block is given.
    saved = [terms(answer[LOSS])["activations.saved"] for answer in (plain, scaled)]
    assert saved[1] == saved[0] + HIDDEN_BF16 == 23 * HIDDEN_BF16
    assert terms(plain[LOSS])["logits"] == terms(scaled[LOSS])["logits"]  # the fp32 copies are larger


def test_granite_has_no_targets_of_its_own(granite: str, capsys: pytest.CaptureFixture[str]) -> None:
    from vramcast.cli import main

    assert main(["check", "--model", granite, "--gpu", "l4", "--set", "tuning=lora"]) == 2
    assert capsys.readouterr().err.splitlines()[:2] == [
        "error: lora.targets is not known: PEFT has none of its own for model type granite",
        "  help  --set lora.targets=q_proj,v_proj",
    ]


FSDP1 = {"gpus": 2, "shard": "fsdp1", "recompute": "full"}
LAYER = 2 * HIDDEN * HIDDEN + 2 * KV * HIDDEN + 3 * FFN * HIDDEN + 2 * HIDDEN  # 44,044,288
ROOT = 2 * VOCAB * HIDDEN + HIDDEN


def test_fsdp1_gathers_one_block_ahead_in_backward() -> None:
    """Not where a reentrant checkpoint runs the forward without a graph: nobody is told which block comes next."""
    for reentrant, blocks in (("false", 2), ("true", 1)):
        found = ask("transformers", **FSDP1, recompute__reentrant=reentrant)
        gathered = {key[:2]: terms(phase).get("fsdp.gathered") for key, phase in found.items() if key[2] == "steady"}
        assert gathered[("forward", "last block")] == 2 * (ROOT + LAYER)
        assert gathered[("loss", "head")] == 2 * ROOT
        assert gathered[("backward", "loss")] == 2 * (ROOT + (blocks - 1) * LAYER)
        assert gathered[("backward", "first block")] == 2 * (ROOT + blocks * LAYER)
        assert gathered[("backward", "last block")] == 2 * (ROOT + LAYER)
