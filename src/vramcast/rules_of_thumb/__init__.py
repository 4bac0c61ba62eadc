"""The two founding articles: their rules of thumb as written, beside the exact forecast.

A is "GRPO VRAM & GPU Sizing: Policy, Reference and Reward", B is "No Out Of Memory!". Their rules are not part of the
memory model: nothing here moves a forecast.
"""

from __future__ import annotations

from vramcast.rules_of_thumb.answer import ArticleForecast, by_rules
from vramcast.rules_of_thumb.compare import Comparison, compare

__all__ = ["ArticleForecast", "Comparison", "by_rules", "compare"]
