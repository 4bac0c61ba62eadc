"""What a cache may be stored in, at each holder, and for which kinds of attention: bytes of one head of one token.

A format is a row: `elements` in `bytes`, and what a head has beside (`head_bytes`), or a fixed size for a whole latent.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from vramcast.catalog.dtypes import BYTES
from vramcast.errors import near, refuse
from vramcast.models.cache.kinds import Holder, LayerKind
from vramcast.num import Size, shard, stored


class Format(Struct, frozen=True):
    """How one head (or latent) of `width` elements is stored for one token."""

    name: str
    elements: int = 1
    bytes: int = 2
    head_bytes: int = 0
    """scales of each head of a key or value"""
    fixed: int = 0
    """bytes of a whole latent, scales and rotary part included"""
    width: int = 0
    """the only width that `fixed` is for"""
    source: str = ""

    def size(self, width: Size) -> Size:
        return self.fixed or stored(width, self.elements, self.bytes) + self.head_bytes


def _plain(name: str, size: int, source: str = "") -> Format:
    return Format(name, 1, size, source=source)


_VLLM = "vllm 0.33 v1/kv_cache_interface.py"
_FP8 = _plain(
    "fp8", 1, f"{_VLLM}, AttentionSpec.state_content_size_bytes: e = 1, scales are per tensor, not stored here"
)
_TRITON = "vllm 0.33 v1/attention/backends/triton_attn.py, customize_spec: an fp32 scale for each token and head"
_NVFP4 = Format("nvfp4", 16, 9, source="vllm 0.33 utils/torch_utils.py, nvfp4_kv_cache_full_dim: d/2 + d/16")
_DS = Format("fp8_ds_mla", fixed=656, width=576, source="vllm 0.33 mla_attention.py: 512 fp8, 4 fp32 scales, 64 bf16")
_V4 = Format("fp8_ds_mla", fixed=584, width=512, source="vllm 0.33 models/deepseek_v4/attention.py: 448 + 128 + 8")
_DS4 = Format("nvfp4_ds_mla", fixed=352, width=576, source="vllm 0.33 mla_attention.py, flashmla_sparse.py")
_SG = "sglang 0.5.23 model_executor/pool_configurator.py, _compute_cell_size"
_SG8 = _plain("fp8", 1, _SG)

HEADS, LATENT, SPARSE, COMPRESSED = "keys and values", "a latent", "a sparse latent", "a compressed latent"
FORMATS: dict[str, dict[str, tuple[Format, ...]]] = {
    "vllm": {
        HEADS: (
            _FP8,
            Format("int8_per_token_head", 1, 1, 4, source=_TRITON),
            Format("fp8_per_token_head", 1, 1, 4, source=_TRITON),
            Format("int4_per_token_head", 2, 1, 4, source=_TRITON),
            _NVFP4,
        ),
        LATENT: (_FP8,),
        SPARSE: (Format("fp8", fixed=656, width=576, source=_DS.source), _DS, _DS4),
        COMPRESSED: (_V4,),
    },
    "sglang": {
        HEADS: (
            _SG8,
            Format("mxfp8", 32, 33, source=f"{_SG}: an 8-bit scale for 32"),
            Format("nvfp4", 16, 9, source="sglang 0.5.23 fp4_kv_cache_quant_method.py, NVFP4KVCacheMethod"),
        ),
        LATENT: (_SG8, Format("fp4_e2m1", 16, 9, source=f"{_SG}: half a byte and an 8-bit scale for 16")),
        SPARSE: (Format("fp8", fixed=656, width=576, source="sglang 0.5.23 calculate_mla_kv_cache_dim"),),
        COMPRESSED: (),
    },
    "transformers": {},
    "transformers 4": {},
}
_PLAIN = {"bf16": 2, "fp16": 2, "fp32": 4}
_ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
    "fp8_inc": "fp8", "nvfp4_4over6": "nvfp4", "fp4_e2m1fn_x2": "fp4_e2m1",
}  # fmt: skip
UNSOURCED = dict.fromkeys(
    "turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc turboquant_3bit_nc octave_k3v4 octave_k3v3"
    " octave_k3v3_compact ultraquant_4bit".split(),
    "its slot has a size of the kernel's own, which is not modelled",
)
"""vLLM's other formats, and why they are refused"""


class Formats(Struct, frozen=True):
    """The dtypes of a cache: of the model, of keys and values, and the name that was asked for."""

    model: str
    cache: Format

    def size(self, dtype: str, width: Size) -> Size:
        """Bytes of one head of `width` elements: "cache", "model", "index" (DSA: fp8 and an fp32 scale for 128)."""
        if dtype == "cache":
            return self.cache.size(width)
        if dtype == "index":
            return width + 4 * shard(width, 128)
        return width * BYTES[self.model if dtype == "model" else dtype]


def attends_with(kinds: Iterable[LayerKind]) -> str:
    """Which family of cache the growing layers have."""
    parts = [part for kind in kinds for part in kind.parts]
    names = {part.name for part in parts}
    if "latent" not in names:
        return HEADS
    if any(part.keeps == "entry" for part in parts):
        return COMPRESSED
    return SPARSE if "index key" in names else LATENT


def formats(kinds: Iterable[LayerKind], holder: Holder, model: str, cache: str = "auto", source: str = "") -> Formats:
    """The formats of a cache. `cache`: as the engine names it; "auto" is the model's dtype.

    Raises:
        Refused: a format that the holder does not have, or not for this kind of attention or width of head.
    """
    kinds = tuple(kinds)
    known = {row.name: row for row in FORMATS[holder].get(attends_with(kinds), ())}
    name = _ALIASES.get(cache, cache)
    if name == "auto" or (name == model and name in _PLAIN):
        return Formats(model, _plain(model, BYTES[model]))
    if name in _PLAIN and holder in ("vllm", "sglang") and name != "fp32":
        return Formats(model, _plain(name, _PLAIN[name]))
    if name not in known:
        raise _unknown(cache, holder, attends_with(kinds), ["bf16", "fp16", *known], source)
    _check_widths(known[name], kinds, source)
    return Formats(model, known[name])


def _unknown(cache: str, holder: str, family: str, allowed: list[str], source: str) -> Exception:
    allowed = [] if holder.startswith("transformers") else allowed
    others = {row.name for rows in FORMATS[holder].values() for row in rows}
    if cache in UNSOURCED and holder == "vllm":
        return refuse(f"a cache in {cache} is not modelled: {UNSOURCED[cache]}",
                      **{"from": source, "allowed": ", ".join(allowed)})  # fmt: skip
    fact = f"{holder} cannot keep {family} in {cache!r}"
    if cache not in others and _ALIASES.get(cache, cache) not in others:
        fact = f"{holder} has no cache dtype {cache!r}"
    help = "leave it unset for the model's own dtype"
    return refuse(fact, **{"from": source, "near": near(cache, allowed), "allowed": ", ".join(allowed), "help": help})


def _check_widths(row: Format, kinds: Iterable[LayerKind], source: str) -> None:
    """Heads must be whole groups of scales, and a packed latent is made for one width."""
    for kind in kinds:
        for part in kind.parts:
            for piece in part.axis.pieces if part.dtype == "cache" else ():
                if row.width and piece.width != row.width:
                    raise refuse(
                        f"{row.name} is for a latent of {row.width} elements, not {piece.width} ({kind.name})",
                        **{"from": source},
                    )
                if not row.width and piece.width % row.elements:
                    raise refuse(
                        f"{row.name} has a scale for {row.elements} elements, which does not divide"
                        f" a head of {piece.width} ({kind.name})",
                        **{"from": source},
                    )
