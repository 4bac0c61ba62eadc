"""A seat: one role in one phase at one instant on one rank. The only argument of a term.

Sizes (counts, tokens, ranks) may be ints, named ints or arrays; modes (strings, booleans) are always plain, so a term
may branch on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import Struct, field, structs

from vramcast.catalog.gpus import Gpu
from vramcast.memory.packing import Packing
from vramcast.memory.promotion import promoted
from vramcast.models.arch import Arch
from vramcast.models.served import Served
from vramcast.num import Named, Size
from vramcast.types.recipe import Recipe

State: TypeAlias = Literal["absent", "rest", "held", "infer", "generate", "forward", "loss", "backward", "step"]
"""What a role does at an instant; `held` = its graph is kept while another role runs."""

Computed = TypeVar("Computed")

SIZES = {
    "sequences": "sequences",
    "seq_len": "seq_len",
    "cached_len": "cached_len",
    "prompt_len": "prompt_len",
    "longest": "longest",
    "scored_len": "scored_len",
    "entropy_chunk": "chunk",
    "lora_rank": "rank",
    "ranks": "ranks",
    "gpus": "gpus",
    "sync_bucket": "bucket",
    "images": "image_tokens",
    "served": "served",
}
"""Size fields of a seat → the symbol a formula shows."""


class Engine(Struct, frozen=True, kw_only=True):
    """An inference engine as one of its ranks sees it."""

    served: Served
    tp: int
    weights_dtype: str
    sleep: Literal["none", "1", "2"]
    eager: bool
    max_seqs: Size
    max_batched_tokens: Size
    max_len: Size


class Seat(Struct, frozen=True, kw_only=True):
    """See the module. `memo` caches the passes over the tape; seats that differ only in state and instant share it."""

    # modes: where and when
    role: str
    state: State
    phase: str
    instant: str
    inner: bool = False
    """of the "first block" of backward: not the last layer, but the worst of those between the first and the last"""
    when: Literal["first", "steady"]

    # sizes
    arch: Arch
    sequences: Size
    """sequences in a micro-batch of this phase"""
    seq_len: Size
    """tokens of each, padded"""
    cached_len: Size = 0
    """tokens of each sequence that the KV cache holds"""
    prompt_len: Size = 0
    longest: Size = 0
    """tokens that generation ends with"""
    images: Size = 0
    """of them, those that images take"""
    scored_len: Size = 0
    """tokens of each sequence that the loss scores"""
    entropy_chunk: Size = 0
    """tokens of which the entropy is computed at once; 0: no chunks"""
    lora_rank: Size = 0
    ranks: Size = 1
    """ranks that share one copy of parameters, gradients and states (FSDP)"""
    gpus: Size = 1
    """ranks of the process's communicator"""
    sync_bucket: Size = 0
    """bytes of the buffer that carries weights to an engine"""
    served: Size = 0
    """ranks of an engine on other GPUs that take weights from this one"""

    # modes: how
    process: str = "trainer"
    leads: bool = True
    """the first seat of its process: carries what a process has once"""
    tuning: Literal["full", "lora", "frozen"]
    weights_dtype: str
    """dtype the weights are stored in; with `packing`, those that are not packed"""
    packing: Packing | None = None
    param_dtype: str
    """dtype the forward sees: the stored one, or FSDP's mixed precision"""
    compute_dtype: str
    autocast: bool
    grad_dtype: str = ""
    """"" = the parameter's own"""
    state_dtype: str = ""
    adapter_dtype: str = "fp32"
    adapter_param_dtype: str = "fp32"
    adapter_dropout: bool = False
    targets: frozenset[str] = frozenset()
    """last names of the linear layers that are adapted"""
    parameters: tuple[tuple[str, int], ...] = ()
    """ends of the names of parameters that are adapted (packed experts), and how many ranks each gets"""
    unfrozen: bool = False
    """nothing learns, and yet parameters say that they do"""
    adapters_off: bool = False
    """they stay where they are, and this pass goes around them"""
    optimizer: str = "adamw"
    optimizer_impl: str = "fused"
    accumulates: bool = False
    """more than one micro-batch per step: gradients outlive a backward"""
    shard: Literal["none", "ddp", "fsdp1", "fsdp2"] = "none"
    whole_unit: bool = False
    """FSDP without a wrap policy: the whole model is one unit"""
    reshards: bool = True
    """FSDP frees gathered weights after the forward"""
    syncs: bool = True
    """FSDP reduces gradients in every micro-batch; else they stay whole until the last one"""
    reduce_dtype: str = "bf16"
    feeds_server: bool = False
    """weights go by NCCL to an engine on other GPUs"""
    communicates: bool = False
    """more than one rank"""
    offloads: frozenset[str] = frozenset()
    """weights, gradients, optimizer: what waits on the host while the role rests"""
    streams: bool = False
    """weights live on the host and come unit by unit (FSDP's CPU offload of a frozen model)"""
    recompute: Literal["none", "full"] = "none"
    reentrant: bool = False
    loss: Literal["full", "fused"] = "full"
    entropy: Literal["none", "compiled", "eager", "chunked"] = "none"
    """of the logits: in the pass over old log-probabilities, and in the loss where it is part of it"""
    attention: str = "flash"
    masked: frozenset[int] = frozenset()
    """windows that are shorter than a sequence: layers with them need a mask, and a kernel that takes one"""
    one_sequence: bool = False
    """a micro-batch is one sequence: products of heads need no copies"""
    sees: bool = False
    """sequences have images"""
    labels_unknown: bool = False
    """nobody said which share of the tokens is scored: the point takes all"""
    caches: bool = False
    decodes: bool = False
    """generation is behind the prompt: one token of each sequence at a time"""
    cache: Literal["dynamic", "static", "offloaded", "quantised"] = "dynamic"
    cache_dtype: str = ""
    """of a quantised cache: int4 or int8"""
    recipe: Recipe = field(default_factory=Recipe)
    gpu: Gpu
    engine: Engine | None = None
    expandable: bool = False
    memo: dict[str, Any] = field(default_factory=dict[str, Any])

    def once(self, key: str, compute: Callable[[], Computed]) -> Computed:
        """Compute a value that all terms and instants of equal work share."""
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]

    @property
    def records(self) -> bool:
        """Autograd is on: the role trains and this phase is part of its step."""
        return self.trains and self.state in ("forward", "loss", "backward", "step")

    @property
    def sharded(self) -> bool:
        return self.shard in ("fsdp1", "fsdp2")

    @property
    def norms_fp32(self) -> bool:
        """Norms are fp32 beside packed weights in 16 bits."""
        return self.recipe.norms_fp32 and self.packing is not None

    @property
    def hidden_dtype(self) -> str:
        """Of hidden states between blocks: what a block gives is added to what it was given. Norms in fp32 make fp32 of
        what a packed MLP is given, and so of what it gives."""
        if self.norms_fp32 or self.arch.ends.wide or self.arch.ends.adds_wide:
            return "fp32"
        if self.autocast and self.arch.ends.narrow:
            return self.compute_dtype
        return promoted(self.param_dtype, self.compute_dtype) if self.autocast else self.param_dtype

    @property
    def holds_inputs(self) -> bool:
        """FSDP 1 reshards frozen blocks by a hook on their inputs; see `fsdp.held_inputs`."""
        frozen_units = self.shard == "fsdp1" and self.tuning == "lora" and not self.whole_unit
        return frozen_units and self.recompute == "full" and self.reentrant

    @property
    def flat_model(self) -> bool:
        """FSDP 1 without a wrap policy: the whole model is one flat tensor."""
        return self.shard == "fsdp1" and self.whole_unit

    @property
    def adds_gradients(self) -> bool:
        """Autograd adds a gradient to the one that is there. Those of views are new in every backward."""
        return self.keeps_gradients and not self.flat_model

    @property
    def keeps_gradients(self) -> bool:
        """Whole gradients are already there when a micro-batch begins."""
        return self.accumulates and not (self.sharded and self.syncs)

    @property
    def started(self) -> bool:
        """The trainer's process has computed something: this role, another one that scores, or an earlier step."""
        if self.phase == "load":
            return False
        return self.state != "rest" or self.when == "steady" or self.phase.startswith("score.")

    @property
    def busy(self) -> bool:
        """The role does something, or its weights are being sent: those of what learns."""
        return self.state not in ("rest", "absent") or (self.phase == "sync" and self.trains)

    def resident(self, what: str) -> bool:
        """Whether weights or optimizer states are on the GPU now."""
        if self.state == "absent" or (what == "weights" and self.streams):
            return False
        needed = self.records if what == "optimizer" else self.busy
        return what not in self.offloads or needed

    def binds(self, window: Size) -> bool:
        """The attention of layers with a window needs a mask."""
        return int(window) in self.masked

    @property
    def tokens(self) -> Size:
        return self.sequences * self.seq_len

    @property
    def seen_len(self) -> Size:
        """Tokens that a token sees at most: those in the cache too."""
        return self.cached_len if self.state == "generate" else self.seq_len

    @property
    def scored_tokens(self) -> Size:
        return self.sequences * self.scored_len

    @property
    def caches_casts(self) -> bool:
        """Autocast keeps the copies that it makes of fp32 parameters, if those say that they learn."""
        return self.autocast and (self.trains or self.unfrozen)

    @property
    def trains(self) -> bool:
        """The role has parameters that learn."""
        return self.tuning != "frozen"

    @property
    def caches_in_step(self) -> bool:
        """The model is called with a cache of keys and values in training too: its default, which checkpoints and the
        Trainer turn off."""
        return self.recipe.outputs_kept and self.recompute != "full"

    @property
    def caches_until_loss(self) -> bool:
        """The model's outputs, and with them the cache, go when the loss is computed."""
        kept = self.recipe.cache_by_config and self.arch.ends.own_cache
        return kept and not self.recipe.outputs_kept and self.recompute != "full"

    @property
    def inputs_require_grad(self) -> bool:
        """Adapters behind checkpoints need a graph from the embedding on (enable_input_require_grads)."""
        return self.tuning == "lora" and self.recompute == "full"

    def ranks_of(self, parameter: str) -> int:
        """How many ranks an adapter on a bare parameter has; 0: there is none."""
        if self.tuning != "lora" or self.adapters_off:
            return 0
        return next((times for end, times in self.parameters if f".{parameter}".endswith(f".{end}")), 0)

    def adapts(self, linear: str) -> bool:
        return self.tuning == "lora" and linear in self.targets and not self.adapters_off


def named(seat: Seat) -> Seat:
    """The same seat with named sizes, for formulas with figures. Its memo must not be shared with unnamed seats."""
    sizes = {name: Named(getattr(seat, name), symbol) for name, symbol in SIZES.items() if getattr(seat, name)}
    return structs.replace(seat, arch=seat.arch.named(), **sizes)
