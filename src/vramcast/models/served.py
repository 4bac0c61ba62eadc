"""A model on one rank of an inference engine: its tensors, what lies beside them, and how its cache is cut."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, Literal, TypeAlias

from vramcast.catalog.dtypes import BYTES
from vramcast.models.cache.formats import Formats, formats
from vramcast.models.cache.kinds import LayerKind, cache_kinds
from vramcast.models.cache.sizes import bytes_per_token
from vramcast.models.cache.vllm import Plan, Run, plan
from vramcast.models.layout import Layout
from vramcast.models.place import Cut
from vramcast.models.quant.extras import extras
from vramcast.models.quant.quantisation import Quantisation
from vramcast.models.stored import allocations
from vramcast.num import Size

Holder: TypeAlias = Literal["vllm", "sglang"]
_VIEWS = re.compile(r"~?0\.([0-9]|1[01])(\D|$)")
"""vLLM up to 0.11 reads MLA's absorbed projections from the weights; later versions copy them"""
_IN_STEP = re.compile(r"~?0\.(1?[0-9]|20)(\D|$)")
"""vLLM up to 0.20 has one step under way; later versions, which schedule ahead, two"""


BATCHED = 8192
"""tokens of a step of vLLM unless told, on most cards: vllm/engine/arg_utils.py, get_batch_defaults"""


class Served:
    """See the module. `cut`: of the engine; `cache`: a dtype, or "auto" for the model's own."""

    def __init__(
        self,
        layout: Layout,
        config: dict[str, Any],
        cut: Cut,
        *,
        dtype: str,
        holder: Holder = "vllm",
        version: str = "",
        quantisation: Quantisation | None = None,
        cache: str = "auto",
    ) -> None:
        self.layout = layout
        self.config = config
        self.cut = cut
        self.dtype = dtype
        self.holder: Holder = holder
        self.version = version
        self.quantisation = quantisation
        self.cache = cache

    def tensors(self, stage: int = 0) -> list[int]:
        """Bytes of everything that is there after loading, in the order in which it is allocated."""
        weights = allocations(self.layout, self.quantisation, self.dtype, self.cut, stage, self.holder)
        return [*map(int, weights), *map(int, self.beside(stage).values())]

    def beside(self, stage: int = 0) -> dict[str, Size]:
        """What no checkpoint has: tables of rotary positions, absorbed projections."""
        copies = self.holder == "sglang" or not _VIEWS.match(self.version)
        width = BYTES[self.dtype]
        return extras(self.config, self.layout, self.quantisation, width, self.cut, stage, self.holder, copies=copies)

    @cached_property
    def kinds(self) -> tuple[LayerKind, ...]:
        """What each layer keeps."""
        return cache_kinds(self.layout, self.config, self.layout.name, self.holder)

    @cached_property
    def formats(self) -> Formats:
        """How it is kept."""
        return formats(self.kinds, self.holder, self.dtype, self.cache, self.layout.name)

    def kv_bytes_per_token(self, *, windowed: bool = False) -> int:
        """Bytes that a further token of a sequence adds on one rank: in layers that see all tokens, and with `windowed`
        in those whose window is not full."""
        return int(bytes_per_token(self.kinds, self.formats, self.cut, windowed=windowed))

    @cached_property
    def plan(self) -> Plan:
        """How vLLM groups the layers and cuts its pool into blocks."""
        return plan(self.kinds, self.formats, self.cut, source=self.layout.name)

    def least_pool(self, tokens: int, max_batched_tokens: int) -> int:
        """The smallest pool that a sequence of `tokens` starts with: its blocks, and the one that is never given out.

        Source: vllm/v1/core/kv_cache_utils.py, check_enough_kv_cache_memory.
        """
        return (self.plan.request_blocks(tokens, self.run(max_batched_tokens)) + 1) * self.plan.block_bytes[0]

    def run(self, max_batched_tokens: int) -> Run:
        """What decides the blocks of a request beside its length."""
        return Run(max_batched_tokens * (1 if _IN_STEP.match(self.version) else 2))
