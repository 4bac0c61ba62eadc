"""Every class of Transformers' causal-LM and image-text-to-text mappings, with its configuration's defaults: parameters
by our parts, or from the class, beside the class's own, tensor by tensor. Needs the extra `trace`.

    python bench/classes.py [TYPE ...]

It prints how many are exact, and each that is not with its cause; `--write` writes the list of types that Transformers
has (src/vramcast/models/classes.json). It exits with 1 if a count is not the class's.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.models.classes import Entry, counted, entries, own_kind  # noqa: E402

from vramcast.models import counted as beside  # noqa: E402


def write() -> None:
    """The list of types, by the installed Transformers."""
    import transformers

    file = Path(beside.__file__).parent / "classes.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    kinds = {kind for entry in entries() for kind in (entry.kind, own_kind(entry))}
    content |= {"transformers": transformers.__version__, "types": sorted(kinds)}
    file.write_text(json.dumps(content) + "\n", encoding="utf-8")


def _line(entry: Entry, told: str) -> str:
    return f"{entry.kind:26} {entry.class_name:44} {told}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--write", action="store_true", help="write the list of types")
    asked = parser.parse_args()
    if asked.write:
        write()
        return 0
    found: Counter[str] = Counter()
    for entry in entries():
        if not asked.types or entry.kind in asked.types:
            answer = counted(entry)
            found[answer.how] += 1
            if answer.why or asked.types:
                print(_line(entry, f"{answer.how}: {answer.why or f'{answer.params:,}'}"), flush=True)
    exact = found["parts"] + found["class"]
    print(
        f"{exact} of {found.total()} entries exact: {found['parts']} from parts, {found['class']} from the class;"
        f" {found['refused']} refused, {found['not built']} not built, {found['differs']} differ"
    )
    return 1 if found["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
