"""Generation: with Hugging Face's `generate`, or by an engine that has the GPU for itself."""

from __future__ import annotations

from vramcast.algorithms.table import LOAD, Algorithm, Instant, Modes, Phase, generation


def _phases(modes: Modes) -> tuple[Phase, ...]:
    if not modes.has_engine:
        return (LOAD, generation("policy", when=("steady",)))
    return (
        Phase("engine.start", (Instant("profiled", {"rollout": "infer"}),), when=("first",)),
        Phase("generate", (Instant("requests", {"rollout": "generate"}),), when=("steady",)),
    )


INFERENCE = Algorithm(
    name="inference",
    about="generate text: prefill the prompt, then decode",
    roles=lambda modes: ("rollout",) if modes.has_engine else ("policy",),
    phases=_phases,
)
