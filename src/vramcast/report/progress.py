"""A progress bar on standard error, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from vramcast.trace.wire import Progress


@contextmanager
def progress() -> Generator[Callable[[Progress], None]]:
    """Gives a function that shows where long work is."""
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tracing", total=None)

        def tell(step: Progress) -> None:
            bar.update(task, description=step.what, completed=step.done, total=step.of or None)

        yield tell
