"""`python -m tools.figures FILE.md [--write]`: exit code 1 and a line for each figure that is not so; or mend them."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.figures.page import check, mended


def main() -> None:
    file = Path(sys.argv[1])
    text = file.read_text(encoding="utf-8")
    covered, wrong = check(text)
    for edit in wrong:
        line = text.count("\n", 0, edit.start) + 1
        print(f"{file}:{line}: {edit.why or f'{text[edit.start : edit.end]!r} is {edit.text!r} now'}")
    print(f"{len(covered) - len(wrong)} of {len(covered)} figures are so")
    if "--write" in sys.argv:
        file.write_text(mended(text, wrong), encoding="utf-8")
        wrong = [edit for edit in wrong if edit.why]
    sys.exit(int(bool(wrong)))


if __name__ == "__main__":
    main()
