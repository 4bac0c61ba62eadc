"""What a source leaves out -> the ends of what it can have been: a forecast at each end gives the range."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tools.rows.names import find_model
from tools.rows.run import Run, run_of

Ends = list[dict[str, Any]]
_SAME: Ends = [{}]
_GIVEN = {"seq_len": "seq_len", "micro_batch": "micro_batch", "checkpointing": "checkpointing", "loss": "loss"}


def between_of(fields: Mapping[str, Any]) -> Ends:
    """The edits of the job at both ends of what is unknown; empty where nothing bounds it.

    Raises:
        Skip: not in the format of the public rows.
    """
    run = run_of(fields)
    found = [_ends(run, note) for note in run.unknown or ()]
    if not all(found):
        return []
    lows, highs = [ends[0] for ends in found], [ends[-1] for ends in found]
    ends = [_merged(lows), _merged(highs)]
    return ends if ends[0] != ends[1] else ends[:1]


def _merged(edits: list[dict[str, Any]]) -> dict[str, Any]:
    return {path: value for edit in edits for path, value in edit.items()}


def _ends(run: Run, note: str) -> Ends:
    if re.match(r"gpus?$|gpu model|quantity", note) and (run.parallel or {}).get("gpus"):
        return _SAME  # which counter, which card: the forecast's own range has both
    if re.match(r"(true )?longest (padded )?batch|true longest", note):
        return _padded(run)
    word = note.partition(" ")[0]
    if word == "seq_len" and run.seq_len is None:
        return _any_length(run)
    if word in _GIVEN and getattr(run, _GIVEN[word]) is not None:
        return _SAME  # the row has what was assumed
    return []


def _padded(run: Run) -> Ends:
    """A batch is padded to its longest sequence: at least the mean of all, at most what they are cut to."""
    mean = run.details.get("avg_tokens_per_sample")
    if run.seq_len is None:
        return []
    return [{"seq_len": int(mean) if isinstance(mean, (int, float)) else 1}, {"seq_len": run.seq_len}]


def _any_length(run: Run) -> Ends:
    """From one token to what the model was made for."""
    described = run.model or {}
    found = find_model(str(described.get("name") or ""), described.get("config") or {}, described.get("params_b"))
    limit = found.config.get("max_position_embeddings") if found is not None else None
    return [{"seq_len": 1}, {"seq_len": limit}] if isinstance(limit, int) else []
