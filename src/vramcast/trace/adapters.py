"""Adapters that PEFT itself counts, in the trace's child process."""

from __future__ import annotations

from typing import Any

from vramcast.errors import Refused
from vramcast.models.adapters import Adapter, AdapterCount, as_said
from vramcast.trace.process import Child
from vramcast.trace.question import AdapterQuestion


def count_adapter(config: dict[str, Any], adapter: Adapter, dtype: str) -> AdapterCount:
    """What PEFT makes trainable in the class that a model's config names, with weights of `dtype`.

    Raises:
        Refused: the extra `trace` is not installed, Transformers has no such class, or PEFT refuses the adapter.
    """
    question = AdapterQuestion(config=config, adapter=as_said(adapter), dtype=dtype, source=adapter.source)
    try:
        with Child() as child:
            return child.adapt(question)
    except Refused as refused:
        for mistake in refused.mistakes:
            mistake.said.setdefault("why", f"{adapter.method} is counted by PEFT itself")
        raise
