"""Supervised fine-tuning, and pre-training, which is the same to memory."""

from __future__ import annotations

from msgspec import structs

from vramcast.algorithms.table import LEARNING, LOAD, POLICY, Algorithm, training

SFT = Algorithm(
    name="sft",
    about="learn from labelled text: one model, forward, loss, backward, step",
    roles=lambda modes: (POLICY,),
    phases=lambda modes: (LOAD, *training(POLICY, modes)),
    paths=(*LEARNING, "shard", "wrap"),
)

PRETRAIN = structs.replace(SFT, name="pretrain", about="learn from plain text: to memory, fine-tuning without a prompt")
