"""What one rank holds, by hand and as a law: the sum over ranks, without replicas and padding, is the whole."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout, Piece, Weight
from vramcast.models.place import (
    Cut,
    check_cut,
    copies,
    held,
    held_by,
    is_expert,
    on_stage,
    owners,
    share,
    stages,
    zero_share,
)  # fmt: skip

MODELS = [
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen2.5-0.5B",
    "bigcode/gpt_bigcode-santacoder",
    "microsoft/Phi-3-medium-4k-instruct",
    "openai/gpt-oss-120b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "deepseek-ai/DeepSeek-V3.2-Exp",
    "Qwen/Qwen3-Coder-Next",
    "tiiuae/Falcon-H1-34B-Instruct",
    "google/gemma-3-12b-it",
]
CUTS = [
    Cut(),
    Cut(tp=2, etp=2),
    Cut(tp=8, ep=8, vocab_multiple=64),
    Cut(tp=8, etp=8, vocab_multiple=64),
    Cut(tp=16, ep=2, etp=8),
]


def layout_of(name: str) -> Layout:
    row = model_config(name)
    return build_layout(row.id, row.config, row.where)


def _divides(layout: Layout, cut: Cut) -> bool:
    try:
        check_cut(layout, cut)
    except Refused:
        return False
    return True


def _owned(weight: Weight, cut: Cut, ranks: tuple[int, int]) -> int:
    """Real elements of a tensor on a rank (tensor parallel, expert parallel), counted unit by unit."""
    expert = is_expert(weight)

    def size(piece: Piece) -> int:
        rank = ranks[1] if piece.kind == "expert" else ranks[0] if piece.kind else 0
        return len(owners(piece, cut, expert, rank)) * piece.width

    return prod(sum(size(piece) for piece in one.pieces) for one in weight.axes)


def _repeated(weight: Weight, cut: Cut) -> int:
    """What all ranks hold together without padding, from the declared copies."""
    expert = is_expert(weight)
    cells = product(*(one.pieces for one in weight.axes))
    total = 0
    for cell in cells:
        kinds = {piece.kind for piece in cell}
        times = prod(copies(piece, cut, expert) for piece in cell)
        times *= 1 if kinds & {"tp", "kv", "vocab"} else (cut.etp if expert else cut.tp)
        times *= cut.ep if expert and "expert" not in kinds else 1
        total += times * prod(piece.count * piece.width for piece in cell)
    return total


@pytest.mark.parametrize("name", MODELS)
def test_the_ranks_hold_the_whole(name: str) -> None:
    layout = layout_of(name)
    dividing = [cut for cut in CUTS if _divides(layout, cut)]
    assert len(dividing) >= 2
    for cut, weight in product(dividing, {weight for block in layout.blocks for weight in block.weights}):
        inner, outer = (cut.etp, cut.ep) if is_expert(weight) else (cut.tp, 1)
        ranks = list(product(range(inner), range(outer)))
        assert sum(_owned(weight, cut, rank) for rank in ranks) == _repeated(weight, cut), (weight.name, cut)
        assert max(_owned(weight, cut, rank) for rank in ranks) <= held(weight, cut)


def test_one_rank_holds_the_model() -> None:
    for name in MODELS:
        layout = layout_of(name)
        assert held_by(layout, Cut()) == layout.params


def test_shares_of_llama_by_hand() -> None:
    """Llama 3.1 8B: 32 query heads, 8 key heads of 128, hidden 4096, 14336 wide, 128,256 words, 32 layers."""
    layout = layout_of("meta-llama/Llama-3.1-8B")
    attention = 4096 * 128 * (2 * 2 + 1 + 1)  # on 16 ranks: q and o of 2 heads, k and v of one head each
    mlp = 3 * 4096 * 14336 // 16
    words = 2 * 4096 * 128256 // 16  # a multiple of 64 and of 16
    norms = 32 * 2 * 4096 + 4096  # whole on every rank
    assert held_by(layout, Cut(tp=16, etp=16, vocab_multiple=64)) == 32 * (attention + mlp) + words + norms


def test_the_vocabulary_is_padded_before_it_is_cut() -> None:
    """GPT-2: 50,257 words; a multiple of 64 is 50,304."""
    layout = layout_of("openai-community/gpt2-xl")
    (words,) = (weight for block in layout.blocks for weight in block.weights if weight.name == "wte.weight")
    assert held(words, Cut(vocab_multiple=64)) == 50304 * 1600
    assert share(words.axes[0].pieces[0], Cut(tp=5, vocab_multiple=64), expert=False) == 10061


def test_latent_projections_are_on_every_rank() -> None:
    """DeepSeek V3: the down-projections are whole, the up-projections cut by heads."""
    layout = layout_of("deepseek-ai/DeepSeek-V3")
    rows = {weight.name: weight for block in layout.blocks for weight in block.weights}
    cut = Cut(tp=8, etp=8)
    assert held(rows["self_attn.kv_a_proj_with_mqa.weight"], cut) == 576 * 7168
    assert held(rows["self_attn.q_b_proj.weight"], cut) == 128 // 8 * 192 * 1536
    assert held(rows["mlp.experts.down_proj"], Cut(ep=32)) == 256 // 32 * 7168 * 2048
    assert held(rows["mlp.experts.down_proj"], cut) == 256 * 7168 * 2048 // 8


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"),
    [(28, 4, [7, 7, 7, 7]), (61, 4, [15, 15, 16, 15]), (94, 4, [23, 24, 24, 23]), (7, 4, [2, 2, 2, 1]), (5, 1, [5])],
)
def test_stages_as_vllm_makes_them(layers: int, pp: int, sizes: list[int]) -> None:
    found = stages(layers, pp)
    assert [len(stage) for stage in found] == sizes
    assert [layer for stage in found for layer in stage] == list(range(layers))


def test_the_stages_hold_the_model_and_a_tied_embedding_twice() -> None:
    for name, twice in (("Qwen/Qwen2.5-7B", 0), ("Qwen/Qwen2.5-0.5B", 151936 * 896)):
        layout = layout_of(name)
        assert sum(held_by(layout, Cut(pp=3), stage) for stage in range(3)) == layout.params + twice
    names = [[block.name for block, _ in on_stage(layout_of("Qwen/Qwen2.5-7B"), Cut(pp=2), stage)] for stage in (0, 1)]
    assert names == [["embedding", "decoder: attention + mlp"], ["decoder: attention + mlp", "final norm", "head"]]


def test_shares_at_rest() -> None:
    """FSDP1 pads a unit, FSDP2 and ZeRO-3 every tensor, ZeRO-3 keeps small ones."""
    layout = layout_of("Qwen/Qwen2.5-0.5B")
    assert zero_share(layout, 1, "fsdp2") == layout.params
    layer = next(block for block in layout.blocks if block.layers)
    assert zero_share(layout, 7, "fsdp1") == -(-(layout.params - 24 * layer.params) // 7) + 24 * -(-layer.params // 7)
    small = sum(
        block.count * one.elements for block in layout.blocks for one in block.weights if one.elements <= 100_000
    )
    large = sum(block.count * -(-one.elements // 7) for block in layout.blocks for one in block.weights
                if one.elements > 100_000)  # fmt: skip
    assert zero_share(layout, 7, "zero3") == small + large
    assert zero_share(layout, 7, "zero3", persistent=0) < small + large


@pytest.mark.parametrize(
    ("name", "cut", "error"),
    [
        # 7, 14 and 28 divide the 28 heads, but not the 18,944 columns of the MLP or the 4 key heads
        ("Qwen/Qwen2.5-7B", Cut(tp=8, etp=8),
         "tp = 8 does not divide the 28 units of self_attn.q_proj.weight\n  allowed  1, 2, 4"),
        ("openai/gpt-oss-120b", Cut(ep=5),
         "ep = 5 does not divide the 128 units of mlp.experts.gate_up_proj\n"
         "  allowed  1, 2, 4, 8, 16, 32, 64, 128"),
        ("Qwen/Qwen2.5-7B", Cut(tp=3, pp=29),
         "tp = 3 does not divide the 28 units of self_attn.q_proj.weight\n  allowed  1, 2, 4\n"
         "error: pp = 29 is more than the 28 layers of Qwen/Qwen2.5-7B\n  allowed  1 to 28"),
        ("Qwen/Qwen2.5-7B", Cut(pp=29), "pp = 29 is more than the 28 layers of Qwen/Qwen2.5-7B\n  allowed  1 to 28"),
        ("Qwen/Qwen2.5-7B", Cut(pp=8, rule="even"), "pp = 8 does not divide the 28 layers of Qwen/Qwen2.5-7B"),
    ],
)  # fmt: skip
def test_what_does_not_divide(name: str, cut: Cut, error: str) -> None:
    with pytest.raises(Refused) as refused:
        check_cut(layout_of(name), cut)
    assert str(refused.value) == f"error: {error}"
