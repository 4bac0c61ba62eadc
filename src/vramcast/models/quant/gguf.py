"""GGUF: the block types of ggml, and the mixes of them that llama.cpp's recipes make.

A recipe such as `Q4_K_M` gives most matrices one type and some of them a better one, by layer. Sources: gguf 0.19
`constants.py` GGML_QUANT_SIZES (bytes of a block); llama.cpp `src/llama-quant.cpp` at 007dbbf3 (which type a tensor
gets, without an importance matrix and without overrides).
"""

from __future__ import annotations

from msgspec import Struct

from vramcast.errors import near, refuse
from vramcast.models.layout import Layout, Weight
from vramcast.models.place import is_expert
from vramcast.models.quant.format import Format, Part, plain
from vramcast.models.quant.names import is_matrix, sides
from vramcast.models.quant.quantisation import Quantisation

BLOCKS = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q2_K": (256, 84),
    "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136), "IQ3_S": (256, 110), "IQ3_XXS": (256, 98), "IQ2_S": (256, 82), "IQ2_XS": (256, 74),
    "IQ2_XXS": (256, 66), "IQ1_S": (256, 50), "IQ1_M": (256, 56), "TQ1_0": (256, 54), "TQ2_0": (256, 66),
    "MXFP4": (32, 17), "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2),
}  # fmt: skip
"""type → (elements of a block, its bytes)"""
RECIPES = {
    "Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q5_0": "Q5_0", "Q5_1": "Q5_1", "Q8_0": "Q8_0", "Q2_K": "Q2_K", "Q3_K_S": "Q3_K",
    "Q3_K_M": "Q3_K", "Q3_K_L": "Q3_K", "Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q5_K_S": "Q5_K", "Q5_K_M": "Q5_K",
    "Q6_K": "Q6_K", "F16": "F16", "BF16": "BF16",
}  # fmt: skip
"""recipe → the type of most matrices"""
TYPES = (
    "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi3 granite smollm3 olmo2 mixtral qwen2_moe qwen3_moe".split()
)
"""model types whose tensors llama.cpp keeps as they are; others it splits or joins"""
_FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""what a matrix gets whose rows are no whole blocks of 256"""
_SOURCE = "llama.cpp src/llama-quant.cpp 007dbbf3; gguf 0.19 constants.py GGML_QUANT_SIZES"
_VALUES = ("v_proj", "qkv_proj")


def block_format(name: str) -> Format:
    """The format of a ggml type.

    Raises:
        Refused: an unknown type.
    """
    if name not in BLOCKS:
        raise refuse(f"GGUF type {name!r} is not known", near=near(name, BLOCKS), allowed=", ".join(BLOCKS))
    elements, size = BLOCKS[name]
    return plain(name, size, _SOURCE) if elements == 1 else Format(name, (Part("packed", 1, elements, size),), _SOURCE)


class _Model(Struct, frozen=True):
    """What the recipes ask about a model."""

    recipe: str
    layers: int
    experts: int
    """1 for a dense model"""
    heads_per_key: int
    seventy: bool
    """Llama and Qwen2 with 80 layers: their value projections get better types"""
    tied: bool


def gguf(recipe: str, layout: Layout) -> Quantisation:
    """The types that a recipe gives to the tensors of a model; vectors and routers stay in fp32.

    Raises:
        Refused: an unknown recipe, or a model type whose tensors llama.cpp does not keep as they are.
    """
    if recipe not in RECIPES:
        raise refuse(
            f"GGUF recipe {recipe!r} is not known",
            near=near(recipe, RECIPES),
            allowed=", ".join(RECIPES),
            reason="IQ recipes depend on an importance matrix" if recipe.startswith("IQ") else "",
        )
    if layout.model_type not in TYPES:
        raise refuse(
            f"GGUF files of model type {layout.model_type} are not known",
            allowed=", ".join(TYPES),
            reason="llama.cpp splits or joins tensors of other types",
        )
    model = _facts(recipe, layout)
    by_type: dict[str, list[str]] = {}
    for block in layout.blocks:
        for name, weight in block.names():
            by_type.setdefault(_type_of(name, weight, block.module(weight), model), []).append(name)
    return GgufQuantisation(
        method="gguf", kind="gguf", label=f"gguf {recipe}", source=_SOURCE,
        types={name: block_format(kind) for kind, names in by_type.items() for name in names},
    )  # fmt: skip


class GgufQuantisation(Quantisation, frozen=True, kw_only=True):
    """Every tensor has a type by its own name."""

    types: dict[str, Format]

    def formats_of(self, name: str, weight: Weight, module: str) -> tuple[Format, ...]:
        return (self.types[name],) if name in self.types else ()


def _facts(recipe: str, layout: Layout) -> _Model:
    experts, queries, keys = 1, 1, 1
    for block in layout.blocks:
        for weight in block.weights:
            if is_expert(weight):
                experts = int(weight.shape[0])
            elif weight.name.endswith("q_proj.weight"):
                queries = int(weight.axes[0].pieces[0].count)
            elif weight.name.endswith("k_proj.weight"):
                keys = int(weight.axes[0].pieces[0].count)
            elif weight.name.endswith("qkv_proj.weight"):
                queries, keys = int(weight.axes[0].pieces[0].count), int(weight.axes[0].pieces[1].count)
    layers = len(layout.layers())
    seventy = layers == 80 and layout.model_type in ("llama", "qwen2") and queries != keys
    return _Model(recipe, layers, experts, queries // max(keys, 1), seventy, layout.tied)


def _type_of(name: str, weight: Weight, module: str, model: _Model) -> str:
    """The type of a tensor: fp32 for vectors and routers, else by recipe; smaller blocks where its rows need them."""
    if module != "embedding" and not is_matrix(name, weight, module):
        return "F32"
    if RECIPES[model.recipe] in ("F16", "BF16"):
        return RECIPES[model.recipe]
    columns = int(sides(name, weight)[1].size)
    wanted = _wanted(name, module, model, columns)
    if columns % BLOCKS[wanted][0]:
        wanted = _FALLBACK.get(wanted, "F16")
    return wanted if columns % BLOCKS[wanted][0] == 0 else "F16"


def _wanted(name: str, module: str, model: _Model, columns: int) -> str:
    """The type by recipe."""
    base = RECIPES[model.recipe]
    leaf = name.removesuffix(".weight").rpartition(".")[2]
    if module == "lm_head" or (module == "embedding" and model.tied):
        whole = columns % BLOCKS[base][0] == 0
        return "Q8_0" if base == "Q8_0" or not whole else "Q6_K"
    if module == "embedding":
        return base
    layer = int(next((word for word in name.split(".") if word.isdigit()), "0"))
    if leaf in _VALUES:
        return _values(base, model, layer)
    if leaf == "k_proj":
        return "Q8_0" if model.experts == 8 else base
    if leaf == "down_proj":
        return _down(base, model, layer)
    return _output(base, model) if leaf in ("o_proj", "out_proj") else base


def _values(base: str, model: _Model, layer: int) -> str:
    """Value projections, or the fused one."""
    wide = model.heads_per_key >= 4
    found = {
        "Q2_K": "Q4_K" if wide else "Q3_K",
        "Q3_K_M": "Q5_K" if layer < 2 else "Q4_K",
        "Q3_K_L": "Q5_K",
        "Q4_K_S": "Q5_K" if layer < 4 else base,
        "Q4_K_M": "Q6_K" if _more_bits(layer, model.layers) else base,
        "Q5_K_M": "Q6_K" if _more_bits(layer, model.layers) else base,
    }.get(model.recipe, base)
    if model.experts == 8:
        return "Q8_0"
    return "Q5_K" if model.seventy and found in ("Q3_K", "Q4_K") else found


def _down(base: str, model: _Model, layer: int) -> str:
    """Down projections, of experts as well."""
    first = layer < model.layers // 8
    return {
        "Q2_K": "Q3_K",
        "Q3_K_M": "Q5_K" if layer < model.layers // 16 else "Q4_K",
        "Q3_K_L": "Q5_K",
        "Q4_K_S": "Q5_K" if first else base,
        "Q4_K_M": "Q6_K" if _more_bits(layer, model.layers) else base,
        "Q5_K_M": "Q6_K" if _more_bits(layer, model.layers) else base,
    }.get(model.recipe, base)


def _output(base: str, model: _Model) -> str:
    """Output projections of attention."""
    if model.experts == 8:
        return "Q5_K" if model.recipe in ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M") else base
    return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(model.recipe, base)


def _more_bits(layer: int, layers: int) -> bool:
    """The first and the last eighth, and every third layer between them."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
