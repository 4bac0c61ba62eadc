"""Reserved over allocated memory in the measured runs, by kind of job.

`python bench/spread.py` prints the rows, with `--write` it makes src/vramcast/catalog/spread.json. A reading counts
where its row also has the allocated peak of the same run. Of what a driver shows the card's context is taken off, and
what communication takes. The high share is the ninth decile of the readings without one source, and of these deciles
the largest: a range must hold for runs that nobody here has seen. Two rows have no readings and say what stands for
them.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from vramcast.catalog.gpus import find_gpu
from vramcast.catalog.overheads import nccl
from vramcast.catalog.spread import kind_of
from vramcast.units import PPM

ROOT = Path(__file__).parent.parent
RUNS, FILE = ROOT / "bench" / "runs", ROOT / "src" / "vramcast" / "catalog" / "spread.json"
REPLAYS = {
    "kind": "expandable segments",
    "of": "allocated",
    "readings": 16,
    "sources": 1,
    "high": 64_000,
    "source": "no reading of a card: replays of 16 traced steps through PyTorch's allocator with expandable segments, "
    "up to 6.4 %",
}
FEW = "several GPUs, all weights"
"""its own readings are fewer than 15: those of adapters on several GPUs stand beside them"""
BySource: TypeAlias = dict[str, list[float]]


def spread() -> list[dict[str, Any]]:
    """The rows of the file."""
    found: dict[str, BySource] = defaultdict(lambda: defaultdict(list))
    for row in _rows():
        kind = _kind(row["job"])
        for name in (kind, FEW) if kind == "several GPUs, adapters" else (kind,):
            share = _share(row, _of(name))
            if share is not None:
                found[name][_source(row)].append(share)
    return [*(_row(kind, by_source) for kind, by_source in sorted(found.items())), _generation(found), REPLAYS]


def _rows() -> Iterator[dict[str, Any]]:
    for file in sorted(RUNS.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row.get("job") and row["job"].get("gpu"):
                yield row


def _kind(job: dict[str, Any]) -> str:
    return kind_of(
        trains=job.get("algorithm") != "inference",
        adapters=job.get("tuning") in ("lora", "qlora"),
        packed=job.get("quant.kind", "none") != "none" or job.get("tuning") == "qlora",
        gpus=job.get("gpus", 1),
        expandable="expandable_segments:True" in job.get("allocator", ""),
    )


def _of(kind: str) -> str:
    return "allocated" if kind == FEW else "moving"


def _source(row: dict[str, Any]) -> str:
    return row["source"].get("repo") or row["source"].get("package") or str(row["source"])


def _share(row: dict[str, Any], of: str) -> float | None:
    """Reserved beyond allocated, as a share: one figure a run, of the counter nearest to the allocator's."""
    peaks: dict[str, float] = {}
    for reading in row["readings"]:
        whole_run = not reading.get("phase") or reading["phase"] == "load"
        if isinstance(reading.get("value"), (int, float)) and not reading.get("bound") and whole_run:
            peaks.setdefault(reading["quantity"], reading["value"])
    allocated = peaks.get("allocated_peak")
    read = next((name for name in ("reserved_peak", "process_peak", "device_peak") if name in peaks), None)
    rests = next((peaks[name] for name in _AT_REST if name in peaks), None)
    if allocated is None or read is None or (of == "moving" and (rests is None or rests >= allocated)):
        return None
    scale = allocated - rests if of == "moving" else allocated
    return (peaks[read] - _outside(read, row["job"]) - allocated) / scale


_AT_REST = ("static", "allocated_after_step", "allocated_after_load")
"""what stays between two steps, the best reading first"""


def _outside(read: str, job: dict[str, Any]) -> int:
    """What the counter has beside PyTorch: the context, and all that the driver shows of communication."""
    if read == "reserved_peak":
        return 0
    gpus = job.get("gpus", 1)
    communicates = read == "device_peak" and gpus > 1
    return find_gpu(job["gpu"]).context_bytes.point + (nccl(gpus).point if communicates else 0)


def _decile(shares: list[float]) -> float:
    """The ninth decile: the reading that nine tenths of them do not exceed."""
    ordered = sorted(shares)
    return ordered[-(-9 * len(ordered) // 10) - 1]


def _high(by_source: BySource) -> float:
    if len(by_source) == 1:
        return _decile(next(iter(by_source.values())))
    return max(
        _decile([share for source, shares in by_source.items() if source != left_out for share in shares])
        for left_out in by_source
    )


def _row(kind: str, by_source: BySource) -> dict[str, Any]:
    shares = [share for found in by_source.values() for share in found]
    return {
        "kind": kind,
        "of": _of(kind),
        "readings": len(shares),
        "sources": len(by_source),
        "median": round(median(shares) * PPM),
        "high": round(_high(by_source) * PPM),
        "worst": round(max(shares) * PPM),
        "source": ", ".join(sorted(by_source)),
    }


def _generation(found: Mapping[str, BySource]) -> dict[str, Any]:
    """Nobody has measured generation: all that was measured on one GPU stands for it."""
    alone: BySource = defaultdict(list)
    for kind, by_source in found.items():
        if kind.startswith("one GPU"):
            for source, shares in by_source.items():
                alone[source] += shares
    row = _row("generation", alone)
    return {**row, "source": f"no reading of generation: all training on one GPU ({row['source']})"}


def text(rows: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n]\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        FILE.write_text(text(spread()), encoding="utf-8")
    else:
        print(text(spread()), end="")
