"""Generation with Hugging Face's `generate`: the prompt in one pass, then token by token."""

from __future__ import annotations

from vramcast.algorithms.table import LOAD, Algorithm, Instant, Phase

INFERENCE = Algorithm(
    "inference",
    "generate text: prefill the prompt, then decode",
    ("policy",),
    (
        LOAD,
        Phase(
            "generate",
            (Instant("prefill", {"policy": "generate"}), Instant("decode", {"policy": "generate"})),
            when=("steady",),
        ),
    ),
)
