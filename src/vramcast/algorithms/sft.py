"""Supervised fine-tuning, and pre-training, which is the same to memory."""

from __future__ import annotations

from vramcast.algorithms.table import LOAD, Algorithm, training

SFT = Algorithm("sft", "learn from labelled text: one model, forward, loss, backward, step", ("policy",),
                (LOAD, *training("policy")))  # fmt: skip
