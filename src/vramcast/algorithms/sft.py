"""Supervised fine-tuning, and pre-training, which is the same to memory."""

from __future__ import annotations

from vramcast.algorithms.table import LOAD, Algorithm, training

SFT = Algorithm(
    name="sft",
    about="learn from labelled text: one model, forward, loss, backward, step",
    roles=lambda modes: ("policy",),
    phases=lambda modes: (LOAD, *training("policy", modes)),
)
