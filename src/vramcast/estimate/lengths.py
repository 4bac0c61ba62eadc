"""Lengths and counts of sequences, from what a job says of prompts, responses and batches."""

from __future__ import annotations

from vramcast.algorithms import generates, is_grouped
from vramcast.types.recipe import Recipe
from vramcast.types.settings import Settings
from vramcast.units import PPM, ppm


def total_len(settings: Settings) -> int:
    """Tokens of a whole sequence."""
    if generates(settings) and settings.prompt_len and settings.response_len:
        return settings.prompt_len + settings.response_len
    return settings.seq_len


def prompt_len(settings: Settings) -> int:
    """Tokens of its prompt. Without a prompt length all tokens are read at once."""
    if settings.prompt_len:
        return settings.prompt_len
    if settings.response_len:
        return max(settings.seq_len - settings.response_len, 1)
    return settings.seq_len


def scored_len(settings: Settings, recipe: Recipe) -> int:
    """Tokens of a sequence with a label: the first one never has any, the rest by `labelled_frac`."""
    if is_grouped(settings) and settings.response_len and not recipe.scores_prompt:
        return settings.response_len
    share = ppm(round(settings.labelled_frac, 6)) if settings.labelled_frac is not None else PPM
    return max(-(-(total_len(settings) - 1) * share // PPM), 1)


def generated_sequences(settings: Settings) -> int:
    """Sequences one GPU generates at once with the model's own code: in RL, its share of a rollout."""
    return rollout_sequences(settings) // settings.gpus if is_grouped(settings) else settings.micro_batch


def rollout_sequences(settings: Settings) -> int:
    """Responses of one rollout, over all GPUs."""
    if settings.prompts_per_step:
        return settings.prompts_per_step * settings.group
    return settings.micro_batch * settings.accumulation * settings.gpus
