"""Edits go into TRL's own keys, and TRL's reader reads the same values back from them."""

import io
import json
from typing import Any

import pytest

from vramcast.readers import native_keys, read_config
from vramcast.readers.frameworks.trl.reader import NATIVE

EDITS: dict[str, list[Any]] = {
    "model": ["org/m"],
    "tuning": ["full", "lora", "qlora"],
    "weights_dtype": ["fp32", "bf16", "fp16"],
    "autocast": [True, False],
    "compute_dtype": ["bf16", "fp16"],
    "quant.kind": ["nf4", "fp4", "int8"],
    "quant.double": [True],
    "optimizer": ["adamw", "adamw_8bit", "adamw_4bit", "paged_adamw", "paged_adamw_8bit", "adafactor", "sgd", "lion",
                  "galore", "apollo", "lomo", "schedule_free"],
    "optimizer.impl": ["fused", "foreach"],
    "lora.rank": [8],
    "lora.dropout": [0.1],
    "lora.targets": [["q_proj", "v_proj"]],
    "lora.save_modules": [["lm_head"]],
    "lora.dora": [True],
    "micro_batch": [2],
    "accumulation": [4],
    "seq_len": [4096],
    "prompt_len": [512],
    "response_len": [256],
    "packing": [True],
    "padding": ["free"],
    "attention": ["flash", "eager"],
    "recompute": ["none", "full", "selective", "offloaded"],
    "recompute.every": [2],
    "recompute.reentrant": [True],
    "fused_kernels": ["liger", "none"],
    "offload.activations": ["cpu", "none"],
    "compile": [True],
    "group": [4],
    "reference.kind": ["precomputed"],
    "reference.logprob.micro_batch": [4],
    "engine.kind": ["vllm", "hf"],
    "engine.process": ["trainer", "server"],
    "engine.fraction": [0.4],
    "engine.tp": [2],
    "engine.max_len": [4096],
    "engine.sleep": ["2", "none"],
    "allocator": ["expandable_segments:True"],
}  # fmt: skip


def test_every_native_path_is_tried_below():
    assert set(EDITS) == set(NATIVE)


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, values in EDITS.items() for value in values])
def test_an_edit_in_native_keys_is_read_back(path: str, value: Any):
    keys = native_keys("trl==1.16.0", {path: value})
    assert keys
    extra = {"use_peft": True, "load_in_4bit": True} if path == "quant.double" else {}
    text = "\n".join(f"{key}: {json.dumps(native)}" for key, native in {"learning_rate": 1, **keys, **extra}.items())
    assert read_config("-", io.StringIO(text)).job().values[path] == value


def test_native_keys():
    assert native_keys("trl", {"micro_batch": 2, "recompute": "full", "seq_len": 512}) == {
        "per_device_train_batch_size": 2,
        "gradient_checkpointing": True,
        "max_length": 512,
    }
    assert native_keys("trl", {"weights_dtype": "bf16"}) == {"dtype": "bfloat16"}
    assert native_keys("trl", {"optimizer": "adamw_8bit", "optimizer.impl": "fused"}) == {"optim": "adamw_8bit"}
    assert native_keys("trl", {"recompute.every": 2, "recompute.reentrant": False}) == {
        "gradient_checkpointing_kwargs": {"every_n_layers": 2, "use_reentrant": False}
    }
    assert native_keys("trl", {"tp": 2, "weights_dtype": "fp8"}) == {}
    assert native_keys("transformers==5.24.0", {"micro_batch": 2}) == {}
