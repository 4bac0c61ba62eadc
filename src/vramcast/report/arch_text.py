"""The architecture of a model as text of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from vramcast.catalog.dtypes import BYTES
from vramcast.report.arch import ArchReport
from vramcast.report.arch_kept import KeptByLayers
from vramcast.units import gib

_MOST_DIFFERENCES = 8


def show_arch(report: ArchReport) -> str:
    """The report as text."""
    parts = (_head, _blocks, _modules, _tensors, _kept, _adapter, _folder, _layout, _assumed)
    sections = ["\n".join(part(report)) for part in parts]
    return "\n\n".join(section for section in sections if section)


def _head(report: ArchReport) -> Iterator[str]:
    arch = report.arch
    yield f"{report.model}  {report.model_type}"
    yield f"  parameters  {arch.params:,}"
    if arch.active_params != arch.params:
        yield f"  active      {arch.active_params:,} for a token"
    how = f"{report.quantisation}, the rest in {report.dtype}" if report.quantisation else report.dtype
    yield f"  weights     {gib(report.bytes)} in {how}"
    if report.counted:
        yield "  counted from"
        yield from _folded(report.counted, 16)
    if report.published_params is not None:
        same = report.published_params == arch.params
        yield f"  published   {report.published_params:,}{' (the same)' if same else ''}"
        yield from _folded(report.published_reason, 16)


def _folded(text: str, indent: int) -> Iterator[str]:
    for line in wrap(text, 80 - indent):
        yield " " * indent + line


def _row(left: str, name: str, count: str, size: str) -> str:
    return f"  {left:>6} {name[:38]:<38} {count:>18} {size:>13}".rstrip()


def _blocks(report: ArchReport) -> Iterator[str]:
    yield "blocks"
    for block in report.arch.blocks:
        times = f"{block.count} ×" if block.count > 1 else ""
        yield _row(times, block.name, f"{block.params:,}", gib(block.bytes))


def _modules(report: ArchReport) -> Iterator[str]:
    yield f"{'modules':<24}{'parameters':>18}{'share':>9}{'bits':>8}  stored as"
    for name, params in sorted(report.arch.modules.items(), key=lambda item: -item[1]):
        share = f"{100 * params / report.arch.params:.1f} %"
        held = report.weights[name]
        yield f"  {name:<22}{params:>18,}{share:>9}{_bits(held.bits_per_weight):>8}  {_formats(held.formats)}"


def _bits(bits: float) -> str:
    return f"{bits:.3f}".rstrip("0").rstrip(".")


def _formats(names: list[str]) -> str:
    """The packed ones first; dtypes of biases and the like behind them."""
    text = ", ".join(sorted(names, key=lambda name: name in BYTES))
    return text if len(text) <= 18 else f"{text[:17]}…"


def _tensors(report: ArchReport) -> Iterator[str]:
    if report.tensors is None:
        return
    yield "tensors"
    for tensor in report.tensors:
        times = f"{tensor.count} ×" if tensor.count > 1 else ""
        yield f"  {times:>6} {tensor.name}  {' × '.join(map(str, tensor.shape))}"


def _kept(report: ArchReport) -> Iterator[str]:
    kept = report.kept
    if report.counted:
        yield "kept by a sequence: not known, as a class says its parameters only"
        return
    if kept is None:
        yield "kept by a sequence: nothing, as this class generates nothing"
        return
    yield f"kept by a sequence, keys and values in {kept.dtype} ({kept.holder})"
    for kind in kept.kinds:
        yield _row(f"{kind.layers} ×", kind.name, _rate(kind), _once(kind))
    if kept.bytes_per_token:
        yield _row("", "for every further token", f"{kept.bytes_per_token:,} B a token", "")
    if kept.state_bytes:
        yield _row("", "state, whatever the length", "", gib(kept.state_bytes))
    if kept.tokens:
        yield _row("", f"a sequence of {kept.tokens:,} tokens", "", gib(kept.sequence_bytes))
    if kept.request_bytes is not None and kept.request_bytes > kept.sequence_bytes:
        yield _row("", "vLLM's pool to start with it", "", gib(kept.request_bytes))


def _rate(kind: KeptByLayers) -> str:
    if not kind.bytes_per_token:
        return "" if kind.state_bytes else "nothing"
    return f"{kind.bytes_per_token:,} B a token"


def _once(kind: KeptByLayers) -> str:
    if kind.window is not None and kind.bytes_per_token:
        return f"last {kind.window:,}"
    return gib(kind.state_bytes) if kind.state_bytes else ""


def _adapter(report: ArchReport) -> Iterator[str]:
    adapter = report.adapter
    if adapter is None:
        return
    yield f"adapter {adapter.method}  ({adapter.source})"
    yield f"  trainable params: {adapter.trainable:,} || all params: {adapter.total:,} || {adapter.percent:.4f} %"
    for name, trainable in sorted(adapter.modules.items(), key=lambda item: -item[1]):
        yield _row("", name or "shared by all", f"{trainable:,}", "")


def _folder(report: ArchReport) -> Iterator[str]:
    found = report.checkpoint
    if found is None:
        return
    yield f"files of {found.folder}"
    yield _row("", "safetensors", f"{found.bytes:,} B", gib(found.bytes))
    expected, same = found.expected_bytes, found.bytes == found.expected_bytes
    yield _row("", f"expected{' (the same)' if same else ''}", f"{expected:,} B", gib(expected))
    shown = list(found.differences.items())
    for name, more in shown[:_MOST_DIFFERENCES]:
        yield _row("", name, f"{more:+,} B", "")
    if len(shown) > _MOST_DIFFERENCES:
        yield f"         {len(shown) - _MOST_DIFFERENCES} more groups differ: --json has them all"


def _layout(report: ArchReport) -> Iterator[str]:
    if not report.ranks:
        return
    yield "one rank of " + ", ".join(f"{path} = {value}" for path, value in report.layout.items())
    for rank in report.ranks:
        where = f"stage {rank.stage}: " if len(report.ranks) > 1 else ""
        layers = f"layers {rank.first_layer} to {rank.first_layer + rank.layers - 1}"
        yield _row("", where + layers, f"{rank.params:,}", gib(rank.bytes))


def _assumed(report: ArchReport) -> Iterator[str]:
    if report.assumptions:
        yield "assumed"
    for item in report.assumptions:
        yield f"  {item.path} = {item.value}  ({item.origin})"[:80]
