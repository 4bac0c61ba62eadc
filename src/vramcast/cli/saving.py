"""`trace --save-arch FILE`: the traced model as a file that `--model` reads."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from vramcast.errors import refuse
from vramcast.types.job import Understanding

if TYPE_CHECKING:
    from vramcast.models.measured import Measured
    from vramcast.models.saved import SavedArch
    from vramcast.trace import Traced
    from vramcast.trace.measure import Apart


def save_arch(options: argparse.Namespace, question: Understanding, traced: Traced) -> None:
    """Measure, write, and say on standard error how close the file is to the trace."""
    import msgspec

    from vramcast.report.progress import progress
    from vramcast.trace import record
    from vramcast.trace.cache import Cache
    from vramcast.trace.measure import apart, measure
    from vramcast.trace.process import Child

    cache = None if options.no_cache else Cache()
    with Child() as child, progress() as tell:
        file = measure(
            question,
            lambda asked: record(asked, child, tell=tell, cache=cache),
            trust_remote_code=options.trust_remote_code,
        )
    _write(options.save_arch, msgspec.json.encode(file))
    print(_told(options.save_arch, file, apart(file, question, traced.judged, options.save_arch)), file=sys.stderr)


def _write(path: str, content: bytes) -> None:
    """Beside the file first, then in its place."""
    beside = f"{path}.{os.getpid()}.part"
    try:
        with open(beside, "wb") as file:
            file.write(content)
        os.replace(beside, path)
    except OSError as error:
        raise refuse(f"cannot write {path}: {error.strerror}") from None


def _told(path: str, file: SavedArch, apart: Apart) -> str:
    usual, *others = file.measurement.variants[0].fresh.layers
    kinds = f", {1 + len(others)} kinds of blocks" if others else ""
    return "\n".join(
        (
            f"saved {path}: {len(usual.part.tensors)} tensors in a block{kinds}",
            *(f"  {_holds(variant)}" for variant in file.measurement.variants),
            f"  at this job's sizes within {100 * apart.share:.2f} % of the trace ({apart.phase} · {apart.instant})",
        )
    )


def _holds(variant: Measured) -> str:
    """What a variant is good for."""
    sequences = "one sequence" if variant.most == 1 else f"{variant.fewest} or more sequences"
    lengths = f"{variant.shortest:,} to {variant.longest:,} tokens"
    return f"recompute {variant.modes['recompute']:<5} {sequences} of {lengths}"
