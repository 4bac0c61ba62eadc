"""What an inference engine holds on one of its GPUs: weights, working memory, graphs, and the pool for its cache."""

from __future__ import annotations

from vramcast.catalog.dtypes import BYTES
from vramcast.catalog.overheads import overhead
from vramcast.memory.communicator import communicator
from vramcast.memory.loaded import loaded_bytes
from vramcast.memory.seat import Engine, Seat
from vramcast.memory.term import Interval, term
from vramcast.num import Size, at_most, gather, let, shard, whole, worst

_VLLM = "vllm/v1/worker/gpu_worker.py, determine_available_memory"
_MILLION = 1_000_000


def engine_of(seat: Seat) -> Engine:
    """The engine of a rollout seat."""
    assert seat.engine is not None
    return seat.engine


def awake(seat: Seat) -> bool:
    """The engine's weights are mapped: always without sleep mode; else while it generates or takes new weights."""
    return _never_sleeps(seat) or (seat.engine is not None and seat.state in ("infer", "generate", "held"))


def _never_sleeps(seat: Seat) -> bool:
    return seat.engine is not None and seat.state == "rest" and seat.engine.sleep == "none"


def _generates(seat: Seat) -> bool:
    return seat.engine is not None and seat.state in ("infer", "generate")


def _stepping(seat: Seat) -> bool:
    """What a step needs stays in the cache of a process that nobody else allocates from."""
    return _generates(seat) or (_never_sleeps(seat) and seat.leads)


def _started(seat: Seat) -> bool:
    return seat.engine is not None and seat.state != "absent"


@term(
    "engine.weights",
    lives=awake,
    source="vLLM's layers: linears cut by tensor parallelism, vocabulary padded to 64; equal to logged start-ups",
)
def engine_weights(seat: Seat) -> Size:
    """The engine's own copy of the weights, on one of its GPUs.

    In the engine's dtype, divided by its tensor-parallel ranks (key heads are repeated when there are more ranks), plus
    the table of rotary positions. `engine.quant` packs the linear layers of the blocks: fp8 halves them. Asleep it is
    gone (level 2) or on the host (level 1). It wakes before the trainer lets go of anything: at the weight sync both
    copies are there.
    """
    return loaded_bytes(engine_of(seat).served)


@term("engine.activation", lives=_stepping, basis="calibrated", source=_VLLM + "; sampler bytes measured by version")
def engine_activation(seat: Seat) -> Interval:
    """Room for the engine's largest step, found by a dummy run before the pool is sized.

    The larger of a forward over max_num_batched_tokens (MLP products and a few hidden states) and the sampler over
    max_num_seqs rows of the whole vocabulary, though no more than there are tokens. Fewer sequences at once free it.
    """
    engine, arch = engine_of(seat), seat.arch
    tokens, hidden, ffn = engine.max_batched_tokens, arch.hidden, _widest(seat)
    forward = let("forward", tokens * (3 * shard(ffn, engine.tp) + 4 * hidden) * BYTES[engine.weights_dtype])
    sampled = let("sampled", at_most(engine.max_seqs, tokens))
    rows = let("hidden rows", hidden * (tokens + 2 * sampled) * BYTES[engine.weights_dtype])
    rate = overhead("engine_sampler", 1)
    low, point, high = (
        worst(forward, rows + whole(sampled * arch.vocab * millionths, _MILLION))
        for millionths in (rate.low, rate.point, rate.high)
    )
    return Interval(low, point, high)


def _widest(seat: Seat) -> Size:
    """The intermediate width of the widest MLP; of experts, that of those which a token uses together."""
    found = [
        weight.axes[-1].size * (weight.used or 1)
        for block in seat.arch.kinds
        for weight in block.weights
        if block.module(weight) in ("mlp", "routed_experts", "shared_experts") and "down" in weight.name
    ]
    return worst(*found) if found else 4 * seat.arch.hidden


@term(
    "engine.graphs",
    lives=lambda seat: _started(seat) and not engine_of(seat).eager,
    basis="calibrated",
    source="CUDA-graph pools of vLLM 0.19 on H100",
)
def engine_graphs(seat: Seat) -> Interval:
    """CUDA graphs of the decode batch sizes. They stay while the engine sleeps; `enforce_eager` does without,
    slower."""
    row = overhead("engine_graphs", 1)
    return Interval(row.low, row.point, row.high)


@term(
    "engine.runtime",
    lives=_started,
    counter="outside",
    basis="calibrated",
    source="non-torch growth of vLLM during its profile run",
)
def engine_runtime(seat: Seat) -> Interval:
    """What the engine takes outside PyTorch: communication buffers of tensor parallelism, kernels loaded late.

    It stays while the engine sleeps.
    """
    row = overhead("engine_runtime", engine_of(seat).tp)
    return Interval(row.low, row.point, row.high)


def one_sequence(seat: Seat) -> Size:
    """The smallest usable pool: one sequence of the engine's length."""
    engine = engine_of(seat)

    def least(sizes: tuple[int, ...]) -> int:
        return engine.served.least_pool(*sizes)

    return gather(least, (engine.max_len, engine.max_batched_tokens))


@term(
    "engine.kv",
    lives=lambda seat: False,  # sized in the second pass (estimate/pools.py), from what the card has
    basis="derived",
    source=_VLLM,
)
def engine_kv(seat: Seat) -> Size:
    """The pool for keys and values: what the engine's share leaves.

    ⌈fraction × total⌉ less its weights, working memory, graphs and runtime growth, in blocks of 16 tokens. It must hold
    one sequence of the engine's length or the engine does not start; layers with a window keep that and what is in
    flight. More holds more sequences at once. Without sleep
    mode it stays while the trainer works. The share must be free when the engine starts and wakes: what the trainer
    gains later (optimizer states after the first step) is not seen by it.
    """
    return one_sequence(seat)


@term(
    "sync.communicator",
    lives=lambda seat: seat.feeds_server and seat.state != "absent",
    counter="outside",
    basis="calibrated",
    source="trl/extras/vllm_client.py init_communicator: PyNcclCommunicator of the first rank and the server's; "
    "measured buffers by ranks: NVIDIA/nccl issues 864, 964, 1685",
)
def sync_communicator(seat: Seat) -> Interval:
    """NCCL's buffers between the trainer's first rank and an engine that is a server on other GPUs.

    There from the start; new weights are broadcast through it, one tensor at a time.
    """
    return communicator(1 + seat.served)


@term(
    "sync.bucket",
    lives=lambda seat: seat.phase == "sync" and seat.engine is None and seat.trains,
    source="verl checkpoint_engine.update_weights_bucket_megabytes",
)
def sync_bucket(seat: Seat) -> Size:
    """The buffer that carries new weights from trainer to engine."""
    return seat.sync_bucket


@term(
    "sync.gathered",
    lives=lambda seat: seat.phase == "sync" and seat.engine is None and seat.trains and seat.sharded,
    basis="derived",
    source="FSDP state dict, one tensor at a time, in the stored dtype",
)
def sync_gathered(seat: Seat) -> Size:
    """The largest tensor, gathered whole in its stored dtype on the way to the engine: the embedding or the head."""
    return worst(*(weight.elements for _, weight, _ in seat.arch.tensors())) * BYTES[seat.weights_dtype]
