"""`python -m tools.operators [ROWS.jsonl]`: the rows of `bench/runs` that are single operators, run and compared.

Prints a line a reading and exits with 1 if one is farther off than LIMIT and nobody knows why. Needs the extra `trace`.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import msgspec
from tools.operators.component import Component

from vramcast.memory.alloc_conf import AllocatorSettings
from vramcast.trace.replay import replay

LIMIT = 0.014
"""the loop over experts; everything else is within 0.04 %"""
RUNS = Path(__file__).parents[2] / "bench" / "runs" / "training.jsonl"


def peak(component: Component) -> int:
    """Bytes that PyTorch's counter shows at most in later iterations.

    Raises:
        Refused: it cannot be run.
    """
    from tools.operators.run import run_component

    replayed = replay(run_component(component), AllocatorSettings())
    return max(span.allocated for span in replayed.spans if span.mark.when == "steady")


def compared(row: dict[str, Any]) -> tuple[str, bool]:
    """A line of the output, and whether it is within the limit."""
    (reading,) = row["readings"]
    found = peak(msgspec.convert(row["component"], Component))
    error = found / reading["value"] - 1
    why = reading.get("known_reason", "")
    return f"{error:+9.3%}  {found:>15,}  {reading['value']:>15,}  {row['id']}  {why}".rstrip(), (
        bool(why) or abs(error) <= LIMIT
    )


def main() -> None:
    warnings.filterwarnings("ignore")
    files = [Path(name) for name in sys.argv[1:]] or [RUNS]
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    found = [compared(row) for row in rows if row.get("component")]
    print(f"{'off':>9}  {'traced':>15}  {'measured':>15}")
    for line, within in found:
        print(line if within else f"{line}  ✗")
    sys.exit(not all(within for _, within in found))


if __name__ == "__main__":
    main()
