"""The rollout role: the seat of an inference engine, and the pool it takes in a second pass."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from vramcast.algorithms import serves
from vramcast.catalog.gpus import Gpu
from vramcast.estimate.lengths import rollout_sequences, total_len
from vramcast.estimate.resolve import Resolved
from vramcast.memory.seat import Engine, Seat
from vramcast.models.place import VOCAB_MULTIPLE, Cut
from vramcast.models.quant.loadtime import load_time
from vramcast.models.served import BATCHED, Served
from vramcast.types.settings import Settings
from vramcast.units import GIB

TRAINER, ENGINE = "trainer", "engine"


class _Batch(NamedTuple):
    seqs: int
    tokens: int


def _batch(gpu: Gpu) -> _Batch:
    """What vLLM runs at once unless told, by the card: vllm/engine/arg_utils.py, get_batch_defaults."""
    large = gpu.total_bytes.value >= 70 * GIB and "a100" not in gpu.id
    return _Batch(1024, 16384) if large else _Batch(256, BATCHED)


def engine_seat(job: Resolved, base: Seat) -> Seat:
    """The seat of one rank of the engine, in the trainer's process or its own."""
    settings = job.settings
    own = settings.engine_process == "own" or serves(settings)
    return structs.replace(
        base,
        process=ENGINE if own else TRAINER,
        leads=own,
        tuning="frozen",
        shard="none",
        ranks=1,
        communicates=False,
        offloads=frozenset[str](),
        streams=False,
        engine=Engine(
            served=_served(job, settings),
            tp=settings.engine_tp,
            weights_dtype=settings.engine_dtype,
            sleep=settings.engine_sleep,
            eager=settings.engine_eager,
            max_seqs=_max_seqs(job, settings),
            max_batched_tokens=settings.engine_max_batched_tokens or _batch(job.gpu).tokens,
            max_len=settings.engine_max_len or _default_len(job, settings),
        ),
    )


def _served(job: Resolved, settings: Settings) -> Served:
    """The same for all jobs that say the same of the engine."""
    tp, arch = settings.engine_tp, job.arch
    version, cache, own = settings.engine_version or "", settings.engine_kv_dtype or "auto", job.quantisation
    return arch.once(
        f"served {tp} {settings.engine_dtype} {version} {settings.engine_quant} {cache}",
        lambda: Served(
            arch.layout,
            arch.config,
            Cut(tp=tp, etp=tp, vocab_multiple=VOCAB_MULTIPLE),
            dtype=settings.engine_dtype,
            version=version,
            quantisation=own or load_time(settings.engine_quant),
            cache=cache,
        ),
    )


def _max_seqs(job: Resolved, settings: Settings) -> int:
    if settings.engine_max_seqs:
        return settings.engine_max_seqs
    if job.recipe.engine_seqs_from_batch:
        return settings.micro_batch * settings.accumulation * settings.engine_tp
    return _batch(job.gpu).seqs


def _default_len(job: Resolved, settings: Settings) -> int:
    return total_len(settings) if job.recipe.engine_len_from_job else job.arch.max_len


def engines(settings: Settings) -> int:
    """How many engines share the rollout."""
    return settings.engine_count or max(settings.gpus // settings.engine_tp, 1)


def sequences_per_engine(settings: Settings) -> int:
    """Responses one engine generates in a rollout."""
    return -(-rollout_sequences(settings) // engines(settings))
