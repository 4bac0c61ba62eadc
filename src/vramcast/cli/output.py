"""How an answer is printed: JSON, or text with its verdict in colour."""

from __future__ import annotations

import os
import sys
from typing import Any, cast


def print_json(answer: object) -> None:
    import msgspec

    try:
        content = msgspec.json.encode(answer)
    except UnicodeEncodeError:  # a file name, or a word of the command line, that is not UTF-8
        content = msgspec.json.encode(_encodable(msgspec.to_builtins(answer)))
    print(msgspec.json.format(content, indent=1).decode())


def _encodable(value: Any) -> Any:
    """The same with escapes for the bytes that no JSON can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_encodable(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one) for key, one in cast("dict[Any, Any]", value).items()}
    return value


def coloured(text: str) -> str:
    """The verdict in colour, on a terminal only, and where nobody asks for none (no-color.org)."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    from rich.console import Console

    first, _, rest = text.partition("\n")
    style = {"F": "bold green", "T": "bold yellow", "D": "bold red"}.get(first[0], "bold")
    Console(highlight=False).print(first, style=style, soft_wrap=True)
    return rest
