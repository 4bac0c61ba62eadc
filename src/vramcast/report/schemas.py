"""The JSON Schema of every verb's JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from vramcast.report.arch import ArchReport
from vramcast.report.levers import Levers
from vramcast.report.own_step import OwnReport
from vramcast.report.read import Understood
from vramcast.report.trace import TraceReport
from vramcast.rules_of_thumb import ArticleForecast, Comparison
from vramcast.types.result import Forecast, PhaseBytes
from vramcast.validation import Bench


def schemas() -> dict[str, Any]:
    """Verb → JSON Schema (draft 2020-12) of what it prints with --json."""
    return {
        "check": msgspec.json.schema(Forecast),
        "check --rules article": msgspec.json.schema(ArticleForecast),
        "check --compare": msgspec.json.schema(Comparison),
        "levers": msgspec.json.schema(Levers),
        "explain": msgspec.json.schema(PhaseBytes),
        "explain --arch": msgspec.json.schema(ArchReport),
        "bench": msgspec.json.schema(Bench),
        "read": msgspec.json.schema(Understood),
        "trace": msgspec.json.schema(TraceReport),
        "trace --step": msgspec.json.schema(OwnReport),
    }
