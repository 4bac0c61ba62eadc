"""Write what the pinned commands print now: `python -m tests.cli.regenerate` in the repository's root.

Read the difference before you commit it: a number that moves belongs under "Predictions moved" in the changelog.
"""

from __future__ import annotations

from tests.cli.cases import ANSWERS, EXPECTED, REFUSALS, answer, refusal


def regenerate() -> None:
    EXPECTED.mkdir(exist_ok=True)
    for old in EXPECTED.glob("*.txt"):
        old.unlink()
    for name, command in ANSWERS.items():
        (EXPECTED / f"{name}.txt").write_text(answer(command).text(command), encoding="utf-8")
    for name, command in REFUSALS.items():
        (EXPECTED / f"refused_{name}.txt").write_text(refusal(command).text(command), encoding="utf-8")


if __name__ == "__main__":
    regenerate()
