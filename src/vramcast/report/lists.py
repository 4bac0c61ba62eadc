"""The tables of `list`, and the job of `read`, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from vramcast.algorithms import ALGORITHMS
from vramcast.algorithms.table import Modes
from vramcast.catalog.dtypes import DTYPES
from vramcast.catalog.frameworks import frameworks
from vramcast.catalog.gpus import Figure, Gpu, gpus
from vramcast.catalog.models import model_config, model_names
from vramcast.catalog.optimizers import optimizers, refused
from vramcast.catalog.overheads import overheads
from vramcast.estimate import Resolved
from vramcast.memory.term import TERMS
from vramcast.report.levers import lever_rows
from vramcast.report.words import value
from vramcast.types.paths import PATHS
from vramcast.units import GIB, gib

WIDE = 100
_LEAST = 16
_SOURCES = ("source", "sources")
_GAP = "  "


def rows(what: str) -> list[dict[str, object]]:
    """What `list` shows, one mapping a row."""
    return {
        "gpus": _gpus,
        "models": _models,
        "terms": _terms,
        "levers": lever_rows,
        "optimizers": _optimizers,
        "dtypes": _dtypes,
        "overheads": _overheads,
        "algorithms": _algorithms,
        "frameworks": _frameworks,
        "paths": _paths,
    }[what]()


def brief(what: str) -> str:
    """What `list` prints: a table that fits a page. `--json` has the whole."""
    if what != "gpus":
        return table(rows(what))
    legend = ", ".join(f"{mark} {word}" for word, mark in _MARKS.items())
    return f"{table([_short(gpu) for gpu in gpus()])}\n\n{legend}; sources: --json"


def table(found: Sequence[Mapping[str, object]]) -> str:
    """Rows as columns of at most `WIDE` in all: long sources are cut, other long cells go on in the next line. Whole
    rows of the catalogue are left out."""
    if not found:
        return ""
    names = [name for name, cell in found[0].items() if not isinstance(cell, msgspec.Struct)]
    texts = [names, *([_cell(row[name]) for name in names] for row in found)]
    widths = _widths(names, [max(len(text[index]) for text in texts) for index in range(len(names))])
    lines: list[str] = []
    for text in texts:
        cells = [_pieces(name, cell, width) for name, cell, width in zip(names, text, widths, strict=True)]
        for at in range(max(map(len, cells))):
            parts = (cell[at] if at < len(cell) else "" for cell in cells)
            lines.append(_GAP.join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip())
    return "\n".join(lines)


def _widths(names: Sequence[str], natural: list[int]) -> list[int]:
    """As wide as the columns are; where that is too much, sources are made narrower, then whatever is widest but the
    first: a name stays whole."""
    widths = list(natural)
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - WIDE
    for at, name in enumerate(names):
        if name in _SOURCES and over > 0:
            cut = min(over, max(widths[at] - _LEAST, 0))
            widths[at], over = widths[at] - cut, over - cut
    while over > 0 and len(widths) > 1:
        at = max(range(1, len(widths)), key=lambda index: widths[index])
        widths[at], over = widths[at] - 1, over - 1
    return widths


def _pieces(name: str, cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    if name in _SOURCES:
        return [f"{cell[: width - 1]}…"]
    pieces: list[str] = []
    while len(cell) > width:
        cut = cell.rfind(" ", 1, width + 1)
        pieces.append(cell[: cut if cut > 0 else width].rstrip())
        cell = cell[cut + 1 if cut > 0 else width :]
    return [*pieces, cell]


def show_job(job: Resolved) -> str:
    """Every path that has a value, with its origin; what is assumed is marked."""
    said = [{"path": path, "value": value(fact.value), "from": str(fact.origin)} for path, fact in job.facts.items()
            if path in job.job.values]  # fmt: skip
    assumed = [
        {"path": item.path, "value": value(item.value), "from": f"assumed: {item.origin}"} for item in job.assumptions
    ]
    return table([*said, *assumed])


def _short(gpu: Gpu) -> dict[str, object]:
    """A card in one line: figures with the letter of their mark."""
    return {
        "gpu": gpu.id,
        "total GiB": _lettered(gpu.total_bytes, GIB, 2),
        "nvidia-smi": _lettered(gpu.smi_bytes, GIB, 2),
        "vendor GB": _lettered(gpu.vendor_bytes, 10**9),
        "GB/s": _lettered(gpu.bandwidth_bytes_per_s, 10**9),
        "bf16 TFLOP/s": _lettered(gpu.bf16_flops_per_s, 10**12),
        "context GiB": f"{gpu.context_bytes.point / GIB:.2f} {_MARKS[gpu.context_bytes.mark]}",
    }


_MARKS = {"measured": "m", "vendor": "v", "derived": "d", "assumed": "a", "unsourced": "u"}


def _lettered(figure: Figure | None, unit: int, places: int = 0) -> str:
    return "-" if figure is None else f"{figure.value / unit:,.{places}f} {_MARKS[figure.mark]}"


def _gpus() -> list[dict[str, object]]:
    """Figures with their marks; `row` is the whole row of the catalogue, for JSON."""
    return [
        {
            "gpu": gpu.id,
            "total": _figure(gpu.total_bytes),
            "nvidia-smi": _figure(gpu.smi_bytes),
            "vendor": _figure(gpu.vendor_bytes, "GB", 10**9),
            "bandwidth": _figure(gpu.bandwidth_bytes_per_s, "GB/s", 10**9),
            "bf16": _figure(gpu.bf16_flops_per_s, "TFLOP/s", 10**12),
            "context": f"{gib(gpu.context_bytes.point)} {gpu.context_bytes.mark}",
            "sources": _sources(gpu),
            "row": gpu,
        }
        for gpu in gpus()
    ]


def _figure(figure: Figure | None, unit: str = "", size: int = 1) -> str:
    """In GiB or in a decimal unit, with its mark; a dash for one that is not known."""
    if figure is None:
        return "-"
    number = f"{figure.value / size:,.0f} {unit}" if unit else gib(figure.value)
    return f"{number} {figure.mark}"


def _sources(gpu: Gpu) -> list[str]:
    """Where the figures of the table come from, each source once."""
    figures = (gpu.total_bytes, gpu.smi_bytes, gpu.vendor_bytes, gpu.bandwidth_bytes_per_s, gpu.bf16_flops_per_s,
               gpu.context_bytes)  # fmt: skip
    return list(dict.fromkeys(figure.source for figure in figures if figure is not None))


def _models() -> list[dict[str, object]]:
    found = [model_config(name) for name in model_names()]
    return [
        {
            "model": row.id,
            "parameters": "-" if row.params is None else f"{row.params:,}",
            "type": row.config["model_type"],
            "source": row.source,
        }
        for row in found
    ]


def _terms() -> list[dict[str, object]]:
    return [
        {
            "term": entry.name,
            "counter": entry.counter,
            "basis": entry.basis,
            "what": entry.manual.split("\n")[0],
            "source": entry.source,
        }
        for entry in TERMS.values()
    ]


def _optimizers() -> list[dict[str, object]]:
    found: list[dict[str, object]] = [
        {"optimizer": row.id, "states": row.states, "form": row.form, "dtype": row.dtype, "home": row.home,
         "source": row.source}
        for row in optimizers()
    ]  # fmt: skip
    empty: dict[str, object] = {"states": "", "form": "refused", "dtype": "", "home": ""}
    return [*found, *({"optimizer": name, **empty, "source": why} for name, why in refused().items())]


def _dtypes() -> list[dict[str, object]]:
    return [
        {"dtype": row.id, "bits": f"{row.bits:.3f}", "elements": row.elements, "bytes": row.bytes, "source": row.source}
        for row in DTYPES.values()
    ]


def _overheads() -> list[dict[str, object]]:
    """Sampler bytes are a rate, in millionths of a byte: a sequence, an entry of the vocabulary."""
    return [
        {"overhead": kind, "ranks from": row.ranks, "low": f"{row.low:,}", "point": f"{row.point:,}",
         "high": f"{row.high:,}", "source": row.source}
        for kind, found in overheads().items()
        for row in found
    ]  # fmt: skip


def _algorithms() -> list[dict[str, object]]:
    everything = Modes(reference="copy", engine="vllm", sharded=True, old_logprobs=True)
    return [
        {
            "algorithm": entry.name,
            "roles": [role.name for role in entry.roles(everything)],
            "phases": list(dict.fromkeys(phase.name for phase in entry.phases(everything))),
            "what": entry.about,
        }
        for entry in ALGORITHMS.values()
    ]


def _frameworks() -> list[dict[str, object]]:
    return [
        {"framework": entry.name, "versions": list(entry.versions), "defaults": len(entry.defaults)}
        for entry in frameworks()
    ]


def _paths() -> list[dict[str, object]]:
    return [
        {"path": path.name, "default": value(path.default), "allowed": path.allowed, "what": path.about}
        for path in PATHS.values()
    ]


def _cell(raw: object) -> str:
    """A list without its brackets and quotes."""
    return ", ".join(map(str, raw)) if isinstance(raw, list) else str(raw)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
