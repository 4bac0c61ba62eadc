"""Types that no table has, counted from Transformers' class in the trace's child process."""

from __future__ import annotations

from typing import Any

from vramcast.models.counted import ClassCount
from vramcast.trace.cache import Cache
from vramcast.trace.process import Child
from vramcast.trace.question import ClassQuestion


def count_class(config: dict[str, Any], cache: Cache | None = None) -> ClassCount:
    """The parameters of the class that a config names; from the cache if they are there.

    Raises:
        Refused: the extra `trace` is not installed, or Transformers has no such class.
    """
    question = ClassQuestion(config=config)
    found = cache.load(question, ClassCount) if cache is not None else None
    if found is None:
        with Child() as child:
            found = child.count(question)
        if cache is not None:
            cache.save(question, found)
    return found
