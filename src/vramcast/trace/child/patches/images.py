"""A batch with images: pixels as a processor gives them, and the grids that say how many patches an image has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from vramcast.trace.child.patches.patch import Patch, Replacement
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import Question

GRIDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""types whose images are grids of patches of any size"""
SQUARES = ("gemma3", "llava")
"""types whose images are all of one size"""


class Numbers:
    """Whole numbers that are known where a fake tensor would have none: lengths of images, their grids."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: Any) -> Any:
        found = self.values[part]
        return Numbers(found) if isinstance(part, slice) else found

    def __sub__(self, other: Numbers) -> Numbers:
        return Numbers([left - right for left, right in zip(self.values, other.values, strict=True)])

    def __floordiv__(self, by: int) -> Numbers:
        return Numbers([value // by for value in self.values])

    def prod(self, axis: int) -> Numbers:
        return Numbers([t * h * w for t, h, w in self.values])

    def tolist(self) -> list[Any]:
        return self.values


def image_batch(question: Question) -> dict[str, Any]:
    """What a batch has beside its tokens: one image in each sequence, or several where they are all of one size."""
    vision = question.config["vision_config"]
    tokens, size = question.image_tokens, (question.sequences, question.seq_len)
    types = torch.zeros(size, dtype=torch.long)
    if question.config["model_type"] in GRIDS:
        merge = vision.get("spatial_merge_size", 2)
        channels = vision.get("in_channels", vision.get("in_chans", 3))
        depth = vision.get("temporal_patch_size", 2)
        numbers = channels * depth * vision.get("patch_size", 14) ** 2
        return {
            "pixel_values": torch.zeros((question.sequences * tokens * merge**2, numbers)),
            "image_grid_thw": Numbers([_grid(tokens, merge)] * question.sequences),
            "mm_token_type_ids": types,
            "position_ids": torch.zeros((3, *size), dtype=torch.long),
        }
    side, patches = vision["image_size"], (vision["image_size"] // vision["patch_size"]) ** 2
    one = question.config.get("mm_tokens_per_image", patches)
    pixels = torch.zeros((question.sequences * tokens // one, 3, side, side))
    own = {"token_type_ids": types} if question.config["model_type"] == "gemma3" else {}
    return {"pixel_values": pixels, **own}


def _grid(tokens: int, merge: int) -> tuple[int, int, int]:
    """As square as the number allows."""
    rows = max(one for one in range(1, int(tokens**0.5) + 1) if tokens % one == 0)
    return 1, rows * merge, tokens // rows * merge


def _sights(question: Question, tracker: Tracker) -> list[Replacement]:
    kind = question.config["model_type"]
    module = import_module(f"transformers.models.{kind}.modeling_{kind}")
    found = [Replacement(module, "torch_compilable_check", lambda _: lambda *args, **kwargs: None)]
    if kind not in GRIDS:
        return found
    import_module("transformers.vision_utils")

    def known(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda _: lambda grid, *args, **kwargs: make(grid)

    def sums(lengths: Sequence[int]) -> Numbers:
        return Numbers([sum(lengths[:end]) for end in range(len(lengths) + 1)])

    def rows(grid: Numbers) -> int:
        return sum(grid.prod(-1).tolist())

    vision = question.config["vision_config"]
    merge = vision.get("spatial_merge_size", 2)
    found += [
        Replacement(module, "get_vision_position_ids", known(lambda grid: torch.zeros((rows(grid), 2)).long())),
        Replacement(module, "get_vision_attention_seqlens", known(lambda grid: (sums(grid.prod(-1).tolist()), None))),
    ]
    if hasattr(module, "get_vision_interpolation_indices_and_weights"):

        def taps(grid: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros((rows(grid), 4), dtype=torch.long), torch.zeros((rows(grid), 4))

        def deepstack(self: Any, hidden: torch.Tensor, masks: Any, embeds: torch.Tensor) -> torch.Tensor:
            hidden = hidden.clone()
            seen = hidden[:, : embeds.shape[0] // hidden.shape[0]]
            seen.copy_((seen.flatten(0, 1) + embeds).view_as(seen))
            return hidden

        found += [
            Replacement(module, "get_vision_interpolation_indices_and_weights", known(taps)),
            Replacement(module.Qwen3VLTextModel, "_deepstack_process", lambda _: deepstack),
        ]
    if hasattr(module, "get_vision_window_index"):
        side = vision.get("window_size", 112) // vision.get("patch_size", 14)

        def windows(grid: Numbers) -> tuple[torch.Tensor, Numbers]:
            lengths = [
                min(side, height - top) * min(side, width - left)
                for _, height, width in grid.tolist()
                for top in range(0, height, side)
                for left in range(0, width, side)
            ]
            return torch.zeros((rows(grid) // merge**2,), dtype=torch.long), sums(lengths)

        found.append(Replacement(module, "get_vision_window_index", known(windows)))
    return found


PATCHES = [
    Patch(
        "grids of images",
        "sizes of images are values of a tensor, which a fake one has not",
        "transformers/vision_utils.py; each model's get_placeholder_mask checks the number of image tokens",
        applies=lambda question: bool(question.image_tokens),
        replaces=_sights,
    )
]
