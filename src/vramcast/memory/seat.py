"""A seat: one role in one phase at one instant on one rank. The only argument of a term.

Sizes (counts, tokens, ranks) may be ints, named ints or arrays; modes (strings, booleans) are always plain, so a term
may branch on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import Struct, field, structs

from vramcast.catalog.gpus import Gpu
from vramcast.models.arch import Arch
from vramcast.num import Named, Size
from vramcast.types.recipe import Recipe

State: TypeAlias = Literal["absent", "rest", "held", "infer", "generate", "forward", "loss", "backward", "step"]
"""What a role does at an instant; `held` = its graph is kept while another role runs."""

Computed = TypeVar("Computed")

SIZES = {
    "sequences": "sequences",
    "seq_len": "seq_len",
    "cached_len": "cached_len",
    "scored_len": "scored_len",
    "lora_rank": "rank",
}
"""Size fields of a seat → the symbol a formula shows."""


class Seat(Struct, frozen=True, kw_only=True):
    """See the module. `memo` caches the passes over the tape; seats that differ only in state and instant share it."""

    # modes: where and when
    role: str
    state: State
    phase: str
    instant: str
    when: Literal["first", "steady"]

    # sizes
    arch: Arch
    sequences: Size
    """sequences in a micro-batch of this phase"""
    seq_len: Size
    """tokens of each, padded"""
    cached_len: Size = 0
    """tokens of each sequence that the KV cache holds"""
    scored_len: Size = 0
    """tokens of each sequence that the loss scores"""
    lora_rank: Size = 0

    # modes: how
    tuning: Literal["full", "lora", "frozen"]
    weights_dtype: str
    compute_dtype: str
    autocast: bool
    grad_dtype: str = ""
    """"" = the parameter's own"""
    state_dtype: str = ""
    adapter_dtype: str = "fp32"
    adapter_dropout: bool = False
    targets: frozenset[str] = frozenset()
    optimizer: str = "adamw"
    optimizer_impl: str = "fused"
    accumulates: bool = False
    """more than one micro-batch per step: gradients outlive a backward"""
    recompute: Literal["none", "full"] = "none"
    reentrant: bool = False
    loss: Literal["full", "fused"] = "full"
    attention: str = "flash"
    labels_unknown: bool = False
    """nobody said which share of the tokens is scored: the point takes all"""
    caches: bool = False
    recipe: Recipe = field(default_factory=Recipe)
    gpu: Gpu
    expandable: bool = False
    memo: dict[str, Any] = field(default_factory=dict[str, Any])

    def once(self, key: str, compute: Callable[[], Computed]) -> Computed:
        """Compute a value that all terms and instants of equal work share."""
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]

    @property
    def tokens(self) -> Size:
        return self.sequences * self.seq_len

    @property
    def scored_tokens(self) -> Size:
        return self.sequences * self.scored_len

    @property
    def trains(self) -> bool:
        """The role has parameters that learn."""
        return self.tuning != "frozen"

    @property
    def inputs_require_grad(self) -> bool:
        """Adapters behind checkpoints need a graph from the embedding on (enable_input_require_grads)."""
        return self.tuning == "lora" and self.recompute == "full"

    def adapts(self, linear: str) -> bool:
        return self.tuning == "lora" and linear in self.targets


def named(seat: Seat) -> Seat:
    """The same seat with named sizes, for formulas with figures. Its memo must not be shared with unnamed seats."""
    dims = seat.arch.dims
    symbols = {name: Named(getattr(dims, name), name) for name in structs.asdict(dims)}
    arch = structs.replace(seat.arch, dims=structs.replace(dims, **symbols))
    sizes = {name: Named(getattr(seat, name), symbol) for name, symbol in SIZES.items() if getattr(seat, name)}
    return structs.replace(seat, arch=arch, **sizes)
