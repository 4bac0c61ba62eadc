"""Generation: with Hugging Face's `generate`, or by an engine that has the GPU for itself."""

from __future__ import annotations

from vramcast.algorithms.table import GENERATOR, LOAD, ROLLOUT, Algorithm, Instant, Modes, Phase, generation


def _phases(modes: Modes) -> tuple[Phase, ...]:
    if not modes.has_engine:
        return (LOAD, generation(GENERATOR, when=("steady",)))
    return (
        Phase("engine.start", (Instant("profiled", {"rollout": "infer"}),), when=("first",)),
        Phase("generate", (Instant("requests", {"rollout": "generate"}),), when=("steady",)),
    )


_PATHS = (
    "framework", "algorithm", "weights_dtype", "micro_batch", "seq_len", "prompt_len", "image_tokens", "attention",
    "engine.kind", "engine.cache", "gpus", "quant.kind", "engine.fraction", "engine.max_len", "engine.tp",
    "engine.dtype", "engine.eager",
)  # fmt: skip

INFERENCE = Algorithm(
    name="inference",
    about="generate text: prefill the prompt, then decode",
    roles=lambda modes: (ROLLOUT,) if modes.has_engine else (GENERATOR,),
    phases=_phases,
    paths=_PATHS,
    learns=False,
    generates=True,
)
