"""How an answer is printed: JSON, or text with its verdict in colour."""

from __future__ import annotations

import sys


def print_json(answer: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(answer), indent=1).decode())


def coloured(text: str) -> str:
    """The verdict in colour, on a terminal only."""
    if not sys.stdout.isatty():
        return text
    from rich.console import Console

    first, _, rest = text.partition("\n")
    style = {"F": "bold green", "T": "bold yellow", "D": "bold red"}.get(first[0], "bold")
    Console(highlight=False).print(first, style=style, soft_wrap=True)
    return rest
