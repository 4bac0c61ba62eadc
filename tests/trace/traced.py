"""A small question, run in this process, and sums over what is alive at its worst moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramcast.trace.question import Question
from vramcast.trace.recording import Recording, Storage

VOCAB, HIDDEN, FFN, LAYERS = 8192, 64, 128, 2
SEQUENCES, LENGTH = 2, 64
TOKENS, LOGITS = SEQUENCES * LENGTH, SEQUENCES * LENGTH * VOCAB
CONFIG = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB, "tie_word_embeddings": False,
}  # fmt: skip
Key = tuple[str, str, str]


def question(**more: Any) -> Question:
    """Two layers, bf16, AdamW in a plain loop."""
    usual: dict[str, Any] = {
        "config": CONFIG, "weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": False, "tuning": "full",
        "sequences": SEQUENCES, "seq_len": LENGTH, "scored_len": LENGTH - 1, "accumulation": 1, "trainer": "loop",
        "loss": "full", "outputs_kept": False, "outputs_fp32": False, "clips": False, "recompute": "none",
        "optimizer": "adamw", "optimizer_impl": "fused", "attention": "flash", "capability": "9.0", "cublas_bytes": 0,
        "cublaslt_bytes": 0,
    }  # fmt: skip
    return Question(**(usual | more))


def run(**more: Any) -> Recording:
    from vramcast.trace.child.step import run as run_question

    return run_question(question(**more))


def most(recording: Recording, key: Key, counts: Callable[[Storage], bool] = lambda storage: True) -> int:
    """The most bytes of some storages at an instant."""
    sizes = [storage.bytes if counts(storage) else 0 for storage in recording.storages]
    held, highest = 0, 0
    for mark, first, end in recording.spans():
        here = (mark.when, mark.phase, mark.instant) == key
        highest = max(highest, held) if here else highest
        for event in recording.events[first:end]:
            if event >= 0:
                held += -sizes[event >> 1] if event & 1 else sizes[event >> 1]
                highest = max(highest, held) if here else highest
    return highest


def shaped(recording: Recording, columns: int, dtype: str = "") -> Callable[[Storage], bool]:
    """Whether a storage is something an operator made with so many columns."""

    def counts(storage: Storage) -> bool:
        shape = recording.names[storage.shape]
        return storage.purpose == "activation" and f"×{columns} " in shape and shape.endswith(dtype)

    return counts


def exactly(recording: Recording, shape: str, *purposes: str) -> Callable[[Storage], bool]:
    """Whether a storage has this shape and dtype, and one of the purposes if any are given."""
    return lambda storage: recording.names[storage.shape] == shape and (not purposes or storage.purpose in purposes)


def instants(recording: Recording, when: str = "steady") -> list[tuple[str, str]]:
    """Phases and instants in their order, each change once."""
    found: list[tuple[str, str]] = []
    for mark in recording.marks:
        if mark.when == when and (not found or found[-1] != (mark.phase, mark.instant)):
            found.append((mark.phase, mark.instant))
    return found


LOSS: Key = ("steady", "loss", "head")
BACKWARD: Key = ("steady", "backward", "loss")
STEP: Key = ("steady", "step", "update")
