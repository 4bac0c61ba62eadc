"""Random jobs for the property tests: everything that moves memory on one GPU, in combinations that are allowed."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from vramcast.catalog.gpus import gpus
from vramcast.catalog.models import model_config, model_names
from vramcast.types.job import Fact, Origin, Understanding, check_value

Values = dict[str, Any]
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


_TYPES = ("granite", "llama", "mistral", "qwen2", "qwen3")


def _is_modelled(name: str) -> bool:
    config = model_config(name).config
    return config.get("model_type") in _TYPES and config["architectures"][0].endswith("ForCausalLM")


MODELS = tuple(filter(_is_modelled, model_names()))
"""Models whose activations are modelled."""
CARDS = tuple(gpu.id for gpu in gpus())


def said(values: Values) -> Understanding:
    """The job as a user says it with `--set`."""
    origin = Origin("--set")
    return Understanding([Fact(path, check_value(path, value, origin), origin) for path, value in values.items()])


def parameters_of(model: str) -> int:
    """The catalogue's figure, which has a source of its own."""
    params = model_config(model).params
    assert params is not None
    return params


_precision = st.sampled_from(
    [
        {"weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": False},
        {"weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": True},
        {"weights_dtype": "fp32", "compute_dtype": "bf16", "autocast": True},
        {"weights_dtype": "fp32", "compute_dtype": "fp16", "autocast": True},
        {"weights_dtype": "fp32", "compute_dtype": "fp32", "autocast": False},
    ]
)
_lora = st.fixed_dictionaries(
    {
        "tuning": st.just("lora"),
        "lora.rank": st.integers(1, 64),
        "lora.targets": st.just(["all-linear"]) | st.lists(st.sampled_from(LINEARS), min_size=1, unique=True),
        "lora.dtype": st.sampled_from(["fp32", "bf16"]),
        "lora.dropout": st.sampled_from([0.0, 0.05]),
    }
)
_work = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "gpu": st.sampled_from(CARDS),
        "attention": st.sampled_from(["flash", "efficient"]),
        "micro_batch": st.integers(1, 16),
        "seq_len": st.integers(1, 9000),
        "allocator": st.sampled_from(["", "expandable_segments:True"]),
    }
)
_training = st.fixed_dictionaries(
    {
        "algorithm": st.sampled_from(["sft", "pretrain"]),
        "framework": st.just("trl==1.16.0"),
        "accumulation": st.sampled_from([1, 4]),
        "recompute": st.sampled_from(["none", "full"]),
        "recompute.reentrant": st.booleans(),
        "loss": st.sampled_from(["full", "fused"]),
        "optimizer.impl": st.sampled_from(["fused", "foreach", "loop"]),
        "state_dtype": st.sampled_from([None, "fp32", "bf16"]),
        "labelled_frac": st.sampled_from([None, 0.25, 1.0]),
    }
)
_generation = st.fixed_dictionaries(
    {
        "algorithm": st.just("inference"),
        "framework": st.just("transformers==5.24.0"),
        "weights_dtype": st.sampled_from(["fp32", "bf16", "fp16"]),
    }
)


def merged(*parts: st.SearchStrategy[Values]) -> st.SearchStrategy[Values]:
    return st.tuples(*parts).map(lambda found: {path: value for part in found for path, value in part.items()})


trainings = merged(_work, _training, _precision, st.just({"tuning": "full"}) | _lora)
jobs = trainings | merged(_work, _generation)
