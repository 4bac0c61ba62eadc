"""Generation with Hugging Face's `generate`."""

from __future__ import annotations

from vramcast.algorithms.table import LOAD, Algorithm, generation

INFERENCE = Algorithm(
    name="inference",
    about="generate text: prefill the prompt, then decode",
    roles=lambda modes: ("policy",),
    phases=lambda modes: (LOAD, generation("policy", when=("steady",))),
)
