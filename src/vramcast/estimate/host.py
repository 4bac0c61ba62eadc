"""Host memory: what is offloaded, by machine."""

from __future__ import annotations

from vramcast.catalog.dtypes import BYTES
from vramcast.estimate.resolve import Resolved
from vramcast.estimate.seats import Seats
from vramcast.estimate.timeline import roles_of
from vramcast.memory.seat import Seat
from vramcast.memory.terms.engine import engine_weights
from vramcast.memory.terms.optimizer import optimizer_of, state_bytes
from vramcast.memory.units import held_parameters
from vramcast.types.result import NodePhase, TermBytes

_MANAGED = "CUDA managed memory: on the host when the GPU is full"
_FSDP = "torch FSDP CPUOffload: the shard of every rank of the machine"


def nodes(job: Resolved) -> list[NodePhase]:
    """The busiest machine while everything that is offloaded rests; empty when nothing is."""
    per_machine = min(job.settings.gpus, job.settings.gpus_per_node)
    found = [term for role in roles_of(job) for term in _offloaded(Seats(job, role).base, per_machine)]
    if not found:
        return []
    total = sum(term.bytes for term in found)
    return [
        NodePhase(
            name="node",
            phase="all",
            host_bytes=total,
            host_pinned_bytes=sum(term.bytes for term in found if term.name == "engine.weights"),
            host_capacity_bytes=job.settings.host_bytes,
            terms=found,
        )
    ]


def _offloaded(seat: Seat, ranks: int) -> list[TermBytes]:
    found: list[TermBytes] = []
    if seat.engine is not None:
        if seat.engine.sleep == "1":
            found.append(_term("engine.weights", seat, ranks * int(engine_weights(seat)), "vLLM sleep level 1: pinned"))
        return found
    if "weights" in seat.offloads:
        size = int(held_parameters(seat)) * BYTES[seat.weights_dtype]
        found.append(_term("weights", seat, ranks * size, _FSDP))
    if seat.trains and ("optimizer" in seat.offloads or optimizer_of(seat).home == "managed"):
        source = _MANAGED if optimizer_of(seat).home == "managed" else _FSDP
        found.append(_term("optimizer.state", seat, ranks * int(state_bytes(seat)), source))
    return found


def _term(name: str, seat: Seat, size: int, source: str) -> TermBytes:
    return TermBytes(
        name=name,
        role=seat.role,
        process=seat.process,
        bytes=size,
        low_bytes=size,
        high_bytes=size,
        counter="outside",
        elastic=False,
        formula="ranks of the machine × bytes of a rank",
        figures=f"{size:,}",
        basis="derived",
        source=source,
    )
