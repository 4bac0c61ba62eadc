"""What a newcomer asks, and where the answer is; or that it is not there yet."""

from __future__ import annotations

from vramcast.errors import Refused, refuse

QUESTIONS = (
    ("does it fit?", "vramcast check CONFIG --gpu CARD"),
    ("on which card?", "vramcast check CONFIG, without --gpu"),
    ("on how many GPUs?", "check with --gpus N; no search for N yet"),
    ("which micro-batch?", "vramcast levers: the largest that fits"),
    ("which length?", "check with --set seq_len=8k; no search yet"),
    ("which engine share?", "check: the line `engine`"),
    ("what does its cache hold?", "check: the line `engine`"),
    ("why out of memory?", "check: the line `why`; logs are not read yet"),
    ("what costs least?", "vramcast levers: by price; no layouts yet"),
    ("how long is a step?", "not there yet: memory is forecast, time is not"),
)
"""Question, and the command or the sentence that ends it."""

_ABSENT = {
    "solve": (
        "no verb searches for the largest value that fits",
        "vramcast levers names the largest micro-batch that fits; vramcast check --set seq_len=8k asks about one value",
    ),
    "plan": (
        "no verb searches for the cheapest layout or cards",
        "vramcast check without --gpu lists the usual cards; --gpus 4 --set shard=fsdp2 asks about one layout",
    ),
    "diagnose": (
        "no verb reads the log of a run that failed",
        "vramcast check with the run's own config says which phase and term bind",
    ),
    "diff": ("no verb compares two jobs", "vramcast check --json of both"),
    "compare": (
        "no verb puts one measurement beside a job",
        "vramcast bench FILE for measured rows; vramcast check --compare for rules of thumb",
    ),
    "serve": ("there is no web page", "vramcast check --markdown"),
    "time": ("memory is forecast, time is not", "vramcast levers says which edits cost time"),
}
"""Verb that does not exist -> why, and what does."""
_VERB = "argument VERB: invalid choice: '"


def questions() -> str:
    """The end of `vramcast --help`."""
    return "\n".join(["questions:", *(f"  {question:<26}{answer}" for question, answer in QUESTIONS)])


def not_there_yet(message: str) -> Refused | None:
    """What to say where argparse says that a verb does not exist; None for other messages and verbs."""
    word = message.removeprefix(_VERB).partition("'")[0] if message.startswith(_VERB) else ""
    if word not in _ABSENT:
        return None
    why, use = _ABSENT[word]
    return refuse(f"`{word}` is not there yet: {why}", use=use)
