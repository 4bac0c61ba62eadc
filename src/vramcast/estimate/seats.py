"""Seats: what one role does at one instant, from its settings."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from vramcast.algorithms import algorithm_of, is_apart
from vramcast.algorithms.table import Instant, Phase, Role, When
from vramcast.estimate.lengths import generated_sequences, prompt_len, scored_len, total_len
from vramcast.estimate.measured_checks import check_measured
from vramcast.estimate.packing import packing_of
from vramcast.estimate.resolve import Resolved
from vramcast.estimate.rollout import engine_seat
from vramcast.memory.alloc_conf import parse
from vramcast.memory.seat import Seat, named
from vramcast.types.recipe import Recipe
from vramcast.types.settings import ADAPTED, Settings


class Seats:
    """Makes the seats of one role; seats of equal work share what was computed for them. With `names`, sizes carry
    their symbols and every formula its text."""

    def __init__(self, job: Resolved, role: Role, *, names: bool = False) -> None:
        self.role = role
        self.names = names
        self.job = job
        self.settings = job.role(role.name)
        base = _model_seat(job, role, self.settings)
        check_measured(job, base)
        self.base = engine_seat(job, base) if role.engine else base
        self.memos: dict[tuple[object, ...], dict[str, Any]] = {}

    def seat(self, phase: Phase, instant: Instant, when: When) -> Seat:
        """The seat at an instant; the role rests when the table does not name it."""
        state = instant.states.get(self.role.name, "rest")
        work = self._work(phase.name, state, instant.name)
        records = self.base.trains and state in ("forward", "loss", "backward", "step")
        memo = self.memos.setdefault((records, state == "generate", *work.items()), {})
        seat = structs.replace(
            self.base,
            state=state,
            phase=phase.name,
            instant="first block" if instant.name == "blocks" else instant.name,
            inner=instant.name == "blocks",
            when=when,
            memo=memo,
            masked=self._masked(state, work),
            **work,
        )
        return named(seat) if self.names else seat

    def _work(self, phase: str, state: str, instant: str) -> dict[str, Any]:
        """Sizes of this phase: a forward-only pass has its own micro-batch; generation reads prompts, then tokens."""
        if self.base.engine is not None:
            return {}
        if state == "infer":
            sequences, length = _tokens(self.settings, scores=True)
            return {"sequences": sequences, "seq_len": length, **self._score(phase)}
        if state != "generate":
            return {}
        total, prompt = total_len(self.settings), prompt_len(self.settings)
        sequences = {"sequences": generated_sequences(self.settings), **self._without_autocast()}
        if instant == "decode":
            sequences |= {"decodes": True, "seq_len": 1, "cached_len": total}
        else:
            sequences |= {"seq_len": prompt, "cached_len": prompt}
        return {**sequences, "prompt_len": prompt, "longest": total}

    def _masked(self, state: str, work: dict[str, Any]) -> frozenset[int]:
        """Windows that bind: Transformers makes no mask of a shorter sequence, and FlashAttention's own package takes
        windows itself (masking_utils.py, _ignore_causal_mask_sdpa)."""
        length, arch = work.get("seq_len", self.base.seq_len), self.job.arch
        if self.base.engine is not None or not self.job.sdpa or arch.measured is not None:
            return frozenset()
        if arch.ends.masks:
            return frozenset(arch.ends.spans)
        if length > 1 and (arch.ends.masked or (arch.ends.both_ways and self.base.sees)):  # or images see themselves
            return frozenset(arch.ends.spans)
        return frozenset(window for window in arch.windows if window <= length)

    def _score(self, phase: str) -> dict[str, Any]:
        """The reference may be the policy without its adapters; the entropy is that of the old policy."""
        if phase == "score.reference":
            return {"adapters_off": True, "entropy": "none"}
        chunk = self.settings.logprob_chunk if self.settings.logprob_entropy == "chunked" else 0
        return {"entropy": self.settings.logprob_entropy, "entropy_chunk": chunk}

    def _without_autocast(self) -> dict[str, Any]:
        """PEFT's `generate` calls the model inside, whose forward accelerate did not wrap."""
        outside = self.base.tuning == "lora"
        return {"autocast": False, "compute_dtype": self.base.param_dtype} if outside else {}


def _tokens(settings: Settings, *, scores: bool) -> tuple[int, int]:
    """(sequences, tokens of each) of a micro-batch. A token budget is one packed row, at least the longest sequence."""
    budget = (settings.logprob_token_budget or settings.token_budget) if scores else settings.token_budget
    length = total_len(settings)
    if budget:
        return 1, max(budget, length)
    micro = (settings.logprob_micro_batch or settings.micro_batch) if scores else settings.micro_batch
    return micro, length


def _model_seat(job: Resolved, role: Role, settings: Settings) -> Seat:
    """A seat of a model that the trainer runs itself."""
    algorithm = algorithm_of(settings.algorithm)
    trains = role.trains
    lora = settings.tuning in ADAPTED and trains
    fused = settings.loss == "fused"
    sharded = is_sharded(settings, job.recipe)
    packing = packing_of(settings, job.arch, job.quantisation, job.recipe) if not role.engine else None
    stored = (settings.quant_rest_dtype if packing else None) or settings.weights_dtype
    mixed = settings.compute_dtype if settings.autocast or sharded else stored  # of autocast, or of FSDP alone
    param_dtype = mixed if sharded else stored
    sequences, length = _tokens(settings, scores=False)
    return Seat(
        role=role.name,
        state="rest",
        phase="",
        instant="",
        when="first",
        leads=role.leads,
        arch=job.arch,
        gpu=job.gpu,
        sequences=sequences,
        seq_len=length,
        images=settings.image_tokens or 0,
        sees=bool(settings.image_tokens),
        scored_len=scored_len(settings, job.recipe) if fused or job.recipe.scores else length,
        labels_unknown=settings.labelled_frac is None and not algorithm.grouped,
        lora_rank=settings.lora_rank if lora else 0,
        ranks=(settings.shard_size or settings.gpus) if sharded else 1,
        gpus=settings.gpus,
        sync_bucket=settings.engine_sync_bucket_bytes or 0,
        tuning="frozen" if not trains else ("lora" if lora else "full"),
        unfrozen=not (trains or role.engine) and algorithm.learns and job.recipe.reference_unfrozen,
        weights_dtype=_stored_dtype(job, settings, stored, trains=trains and not lora),
        packing=packing,
        param_dtype=param_dtype,
        compute_dtype=mixed,
        autocast=settings.autocast and algorithm.learns,
        state_dtype=settings.state_dtype or "",
        adapter_dtype="fp32" if sharded and _upcasts(job, settings) else settings.lora_dtype,
        adapter_param_dtype=param_dtype if sharded and (settings.autocast or mixed != stored) else settings.lora_dtype,
        adapter_dropout=settings.lora_dropout > 0,
        **(_targets(job, settings) if lora else {}),
        optimizer=settings.optimizer,
        optimizer_impl=settings.optimizer_impl,
        accumulates=trains and settings.accumulation > 1,
        shard=_shard(settings, sharded=sharded),
        whole_unit=settings.wrap == "none",
        reshards=settings.reshard,
        syncs=job.recipe.syncs_gradients,
        reduce_dtype="fp32" if job.recipe.reduce_fp32 else mixed,
        communicates=settings.gpus > 1,
        feeds_server=_feeds_server(job, settings, role),
        served=settings.engine_tp,
        offloads=_offloads(settings),
        streams=not role.leads and settings.offload_weights == "cpu" and sharded,
        recompute="full" if settings.recompute == "full" and trains else "none",
        reentrant=settings.recompute_reentrant,
        loss="fused" if fused else "full",
        attention=settings.attention or "flash",
        one_sequence=sequences == 1,
        caches=settings.engine_kind == "hf",
        cache=settings.engine_cache,
        cache_dtype=(settings.engine_kv_dtype or "int4") if settings.engine_cache == "quantised" else "",
        recipe=job.recipe,
        entropy=settings.logprob_entropy if trains and settings.entropy == "grad" else "none",
        expandable=parse(settings.allocator).expandable_segments,
    )


def _feeds_server(job: Resolved, settings: Settings, role: Role) -> bool:
    return is_apart(settings) and settings.engine_kind == "vllm" and role.trains and job.recipe.server_nccl


def _stored_dtype(job: Resolved, settings: Settings, stored: str, *, trains: bool) -> str:
    upcast = trains and _upcasts(job, settings) and is_sharded(settings, job.recipe)
    return "fp32" if upcast else stored


def _upcasts(job: Resolved, settings: Settings) -> bool:
    """Accelerate keeps what trains in fp32 under FSDP's mixed precision, whatever it was loaded in."""
    return job.recipe.upcasts_trainable and settings.autocast


def is_sharded(settings: Settings, recipe: Recipe) -> bool:
    """FSDP wraps the model: over several GPUs, and over one where the framework wraps it whatever their number."""
    return settings.shard in ("fsdp1", "fsdp2") and (settings.gpus > 1 or recipe.fsdp_alone)


def _shard(settings: Settings, *, sharded: bool) -> Any:
    if settings.gpus == 1 and not sharded:
        return "none"
    return "ddp" if settings.shard == "none" else settings.shard


def _offloads(settings: Settings) -> frozenset[str]:
    offloaded = {"weights": settings.offload_weights, "optimizer": settings.offload_optimizer}
    return frozenset(what for what, home in offloaded.items() if home != "none")


def _targets(job: Resolved, settings: Settings) -> dict[str, Any]:
    """What LoRA adapts: linear layers, and packed experts as parameters."""
    from vramcast.models.adapters.methods import moved  # a large file, which few jobs need

    targets = settings.lora_targets or list(job.arch.default_targets)
    found = moved(job.arch.model_type, targets, job.arch.linears)
    return {"targets": frozenset(found.linears), "parameters": found.parameters}
