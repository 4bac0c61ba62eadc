"""Published rows -> our own paths: which model a name means, which job a row is, what no path stands for."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from tools.rows.convert import convert
from tools.rows.jobs import Skip, counter_of, job_of, weights_known
from tools.rows.names import find_model, plain
from tools.rows.ranges import between_of
from tools.rows.stacks import facts_of

from vramcast.errors import Refused
from vramcast.types.job import Understanding
from vramcast.types.paths import Value

# --- which model a name means -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
        ("qwen2.5 7b", "Qwen/Qwen2.5-7B"),
        # training is part of the name, quantisation is not
        ("Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct"),
        ("Llama-3.1-8B-Instruct-FP8 (tp 2)", "meta-llama/Llama-3.1-8B-Instruct"),
        ("unsloth/Llama-3.2-1B-bnb-4bit", "meta-llama/Llama-3.2-1B"),
        # a note may name the architecture
        ("MyTune (Llama-2-70B arch)", "meta-llama/Llama-2-70b-hf"),
        ("Mistral 7B", None),  # of which version
        ("no such model", None),
        ("", None),
    ],
)
def test_a_name_is_a_model_of_the_catalogue_or_none(name: str, found: str | None) -> None:
    row = find_model(name, {})
    assert (row.id if row else None) == found


def test_a_name_with_another_shape_is_another_model() -> None:
    shape = {"layers": 28, "hidden": 3584, "heads": 28, "kv_heads": 4, "head_dim": 128, "vocab": 152064}
    assert find_model("Qwen2.5-7B", shape) is not None
    for word, size in shape.items():
        assert find_model("Qwen2.5-7B", {**shape, word: size + 1}) is None


@pytest.mark.parametrize(
    ("shape", "params_b", "found"),
    [
        ({"layers": 32, "hidden": 4096, "vocab": 128256}, 8.03, True),
        ({"layers": 32, "hidden": 4096, "vocab": 128256}, 8.0, True),  # 8,030,261,248 as far as it is printed
        ({"layers": 32, "hidden": 4096, "vocab": 128256}, 8.1, False),
        ({"layers": 32, "hidden": 4096, "vocab": 128256}, None, False),
        ({"layers": 32, "hidden": 4096}, 8.03, False),  # two sizes are too few
    ],
)
def test_a_fine_tune_is_found_by_its_shape_and_parameters(
    shape: dict[str, int], params_b: float | None, found: bool
) -> None:
    row = find_model("somebody/their-own-name", shape, params_b)
    assert (row.id if row else None) == ("meta-llama/Llama-3.1-8B" if found else None)


def test_a_plain_name_has_neither_owner_nor_quantisation() -> None:
    spelled = ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B-Instruct", "RedHatAI/Meta-Llama-3.1-8B-FP8-dynamic")
    assert {plain(name) for name in spelled} == {"llama318b"}
    assert plain("Instruct") == "instruct"  # nothing would be left


# --- which job a row is -----------------------------------------------------------------------------------------------

VLLM: dict[str, Any] = {
    "id": "a", "workload": "inference_serving", "stack": "vllm", "engine_version": "0.11.0", "dtype": "bf16", "tp": 2,
    "pp": 1, "model": {"name": "Qwen2.5-7B-Instruct"},
}  # fmt: skip
HF: dict[str, Any] = {
    "id": "b", "workload": "inference", "stack": "hf-transformers", "gpu": "A100-80GB", "dtype": "fp16", "batch": 4,
    "engine_version": "transformers 4.46.0, torch 2.3.1", "input_len": 6144, "output_len": 2048,
    "model": {"name": "Qwen2.5-0.5B-Instruct"},
}  # fmt: skip


def test_a_served_model() -> None:
    assert job_of(VLLM) == {
        "model": "Qwen/Qwen2.5-7B-Instruct", "algorithm": "inference", "engine.kind": "vllm", "weights_dtype": "bf16",
        "engine.tp": 2, "engine.pp": 1, "engine.version": "0.11.0",
    }  # fmt: skip
    assert job_of({**VLLM, "stack": "sglang", "kv_cache_dtype": "fp8_e5m2", "dtype": "mixed"}) == {
        "model": "Qwen/Qwen2.5-7B-Instruct", "algorithm": "inference", "engine.kind": "sglang",
        "engine.tp": 2, "engine.pp": 1, "engine.version": "0.11.0", "engine.kv_dtype": "fp8",
    }  # fmt: skip


def test_a_generation_has_lengths_a_version_and_a_card() -> None:
    expected = {
        "model": "Qwen/Qwen2.5-0.5B-Instruct", "algorithm": "inference", "engine.kind": "hf", "weights_dtype": "fp16",
        "engine.version": "transformers 4.46.0, torch 2.3.1", "framework": "transformers==4.46.0", "micro_batch": 4,
        "prompt_len": 6144, "seq_len": 8192, "attention": "flash", "gpu": "a100-sxm-80gb",
    }  # fmt: skip
    assert job_of(HF) == expected
    del expected["gpu"]
    assert job_of({**HF, "gpu": "some card"}) == expected
    assert job_of({**HF, "batch": None, "gpu": None}) == {**expected, "micro_batch": 1}


@pytest.mark.parametrize(
    ("said", "paths"),
    [
        ("awq", {"quant.kind": "awq"}),
        ("GPTQ-Int4 g64", {"quant.kind": "gptq", "quant.bits": 4, "quant.group": 64}),
        ("gptq 8-bit", {"quant.kind": "gptq", "quant.bits": 8}),
        ("compressed-tensors w4a16", {"quant.kind": "gptq", "quant.bits": 4}),
        ("compressed-tensors w8a16", {"quant.kind": "gptq", "quant.bits": 8}),
        ("FP8 dynamic", {"quant.kind": "fp8"}),
        ("nvfp4", {"quant.kind": "nvfp4"}),
        ("mxfp4", {"quant.kind": "mxfp4"}),
        ("bitsandbytes 4-bit", {"quant.kind": "nf4"}),
        ("none", {}),
        (None, {}),
    ],
)
def test_what_sources_call_a_quantisation(said: str | None, paths: dict[str, Value]) -> None:
    found = job_of({**VLLM, "quantization": said})
    assert {path: value for path, value in found.items() if path.startswith("quant.")} == paths


def test_the_name_says_the_quantisation_where_the_field_does_not() -> None:
    assert job_of({**VLLM, "model": {"name": "Qwen2.5-7B-Instruct-AWQ"}})["quant.kind"] == "awq"
    assert "quant.kind" not in job_of({**VLLM, "model": {"name": "Qwen2.5-7B-Instruct-AWQ"}, "quantization": "none"})


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({**VLLM, "model": {"name": "GPT-9"}}, "the catalogue has no model 'GPT-9'"),
        ({**VLLM, "model": "Qwen2.5-7B"}, "the catalogue has no model ''"),
        ({**VLLM, "stack": "exllama"}, "not modelled yet: exllama"),
        ({**VLLM, "kv_dtype": "int2"}, "not modelled yet: a cache in int2"),
        ({**VLLM, "kv_dtype": ["fp8"]}, "not modelled yet: a cache in ['fp8']"),
        ({**VLLM, "quantization": "experts_int8"}, "not modelled yet: quantisation 'experts_int8'"),
        ({**VLLM, "quantization": "4-bit"}, "'4-bit' does not say which quantisation"),
        ({**HF, "engine_version": "main"}, "the source does not say the version of Transformers, or the length of the "
                                           "prompt"),
        ({**HF, "input_len": None}, "the source does not say the version of Transformers, or the length of the prompt"),
    ],
)  # fmt: skip
def test_what_no_path_stands_for_is_a_reason_to_skip(source: dict[str, Any], reason: str) -> None:
    with pytest.raises(Skip) as caught:
        job_of(source)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"quantization": "compressed-tensors"},
         "the checkpoint chooses which modules are packed, and the source does not say"),
        ({"model": {"name": "X-NVFP4"}},
         "the checkpoint chooses which modules are packed, and the source does not say"),
        ({"lora": True}, "slots for adapters are in the figure, and the source does not say their rank"),
        ({"enable_dp_attention": True}, "not modelled yet: data-parallel attention"),
    ],
)  # fmt: skip
def test_weights_that_depend_on_what_a_row_leaves_out(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(Skip) as caught:
        weights_known({**VLLM, **more})
    assert str(caught.value) == reason
    weights_known(VLLM)


def test_a_counter_was_read_between_steps_where_its_differences_are_the_cache() -> None:
    assert counter_of({"unknown": ["counter name (differences match MiB of KV exactly)"]}) == "current"
    assert counter_of({"unknown": ["counter name"]}) == counter_of({}) == "peak"


# --- training runs ----------------------------------------------------------------------------------------------------

LLAMA = {"name": "Llama-2-7B", "params_b": 6.738, "config": {"hidden": 4096, "layers": 32, "heads": 32, "vocab": 32000}}
ROW: dict[str, Any] = {
    "id": "run", "stack": "hf-peft-loop", "workload": "sft", "model": LLAMA, "tuning": "lora",
    "lora": {"rank": 8, "targets": ["q_proj", "v_proj"]}, "weights_dtype": "bf16", "compute_dtype": "bf16",
    "optimizer": "adamw", "micro_batch": 1, "seq_len": 512, "checkpointing": "full", "attention": "sdpa",
    "loss": "full", "parallel": {"gpus": 1, "tp": 1, "zero": 0}, "gpu": "A100-SXM4-80GB",
    "versions": {"transformers": "5.17.0"},
    "readings": [{"quantity": "allocated_peak", "unit": "bytes", "score": "relative", "value": 10**10}],
}  # fmt: skip
FMS = {
    **ROW, "stack": "hf-trainer", "source": {"repo": "foundation-model-stack/fms-acceleration"}, "packed": True,
    "notes": "(torch 2.4.1, transformers 4.48.1, trl 0.13, peft 0.13.2)", "extra": {"framework_config": "none"},
}  # fmt: skip


def said(row: dict[str, Any]) -> dict[str, Any]:
    return Understanding(facts_of(row)).job().to_file()




def test_a_row_in_our_paths() -> None:
    assert said(ROW) == {
        "framework": "loop==5.17.0", "recompute.reentrant": False, "algorithm": "sft",
        "model": "meta-llama/Llama-2-7b-hf", "gpu": "a100-sxm-80gb", "compute_dtype": "bf16", "autocast": False,
        "weights_dtype": "bf16", "tuning": "lora", "lora.rank": 8, "lora.targets": ["q_proj", "v_proj"],
        "optimizer": "adamw", "micro_batch": 1, "seq_len": 512, "recompute": "full", "loss": "full", "gpus": 1,
    }  # fmt: skip


def test_every_value_has_a_cause() -> None:
    causes = {fact.path: str(fact.origin) for fact in facts_of(FMS)}
    assert all(causes.values())
    assert causes["lora.dropout"] == "fms-acceleration scripts/benchmarks/scenarios.yaml: lora_dropout"
    assert causes["micro_batch"] == "row: micro_batch"


def test_what_a_benchmark_sets_itself() -> None:
    job = said({**FMS, "tuning": "qlora", "weights_dtype": "nf4-dq"})
    set_there = ("framework", "optimizer.impl", "lora.dropout", "autocast", "quant.double")
    assert {path: job[path] for path in set_there} == {
        "framework": "trl==0.13", "optimizer.impl": "foreach", "lora.dropout": 0.1, "autocast": True,
        "quant.double": True,
    }  # fmt: skip
    plugin = {**FMS, "tuning": "qlora", "extra": {"framework_config": "accelerated-peft-bnb"}}
    assert said(plugin)["framework"] == "transformers==4.48.1"
    assert said(plugin)["quant.rest_dtype"] == "bf16"


def test_targets_that_match_nothing_are_not_peft_s() -> None:
    lora = {"rank": 8, "targets": ["q_proj", "c_attn"]}
    assert said({**ROW, "lora": lora})["lora.targets"] == ["q_proj"]


@pytest.mark.parametrize(("gpu", "card"), [
    ("Tesla T4 (14912 MiB)", "t4-16gb"), ("A100-40GB", "a100-sxm-40gb"), ("unknown", None), (None, None), ("80GB", None)
])  # fmt: skip
def test_cards(gpu: str | None, card: str | None) -> None:
    assert said({**ROW, "gpu": gpu}).get("gpu") == card


# --- what is not predicted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"parallel": {"zero": 0}}, "the source does not say on how many GPUs"),
        ({"optimizer_in_backward": True}, "not modelled yet: an optimizer that steps within backward"),
        ({"lora": {"rank": 8, "method_config": {"peft_type": "VERA"}}}, "not modelled yet: training with PEFT's VERA"),
        ({"tuning": "galore"}, "refused: tuning: 'galore' is not one of: full, lora, qlora, frozen"),
        ({"stack": "megatron"}, "refused: unknown framework 'megatron'"),
        ({"workload": "component:cross_entropy"}, "the source leaves out what the value depends on: B"),
        ({"workload": "grpo"}, "not modelled yet: grpo"),
        ({"model": {"name": "nobody/knows"}}, "the catalogue has no model 'nobody/knows'"),
        ({"compute_dtype": "bf16 +fp8"}, "not modelled yet: products in 'bf16 +fp8'"),
        ({"micro_batch": "four"},
         "not in the format of the public rows: Expected `int | null`, got `str` - at `$.micro_batch`"),
    ],
)  # fmt: skip
def test_reasons(changed: dict[str, Any], reason: str) -> None:
    found = convert({**ROW, **changed})
    assert (found["skip"], "job" in found) == (reason, False)


def test_another_method_under_the_name_of_lora() -> None:
    row = {**ROW, "stack": "peft", "extra": {"num_trainable_params": 1_000_000}}
    with pytest.raises(Skip, match="it trains 1,000,000 parameters, LoRA of this rank 4,194,304"):
        facts_of(row)


@pytest.mark.parametrize(
    ("changed", "path", "value"),
    [
        ({"checkpointing": "selective"}, "recompute", "selective"),
        ({"compile": True}, "compile", True),
        ({"parallel": {"gpus": 8, "tp": 2, "zero": 0}}, "tp", 2),
        ({"parallel": {"gpus": 8, "zero": 3}}, "shard", "zero3"),
        ({"loss": "liger"}, "fused_kernels", "liger"),
    ],
)
def test_what_is_not_modelled_is_left_to_the_forecast_to_refuse(changed: Any, path: str, value: object) -> None:
    assert convert({**ROW, **changed})["job"][path] == value


def test_what_a_source_leaves_out_has_two_ends() -> None:
    row = {**ROW, "unknown": ["true longest padded batch (<=512 cap)", "gpu"], "extra": {"avg_tokens_per_sample": 99.9}}
    assert convert(row)["between"] == between_of(row) == [{"seq_len": 99}, {"seq_len": 512}]
    assert between_of({**ROW, "unknown": ["offload settings per row"]}) == []


def test_a_served_row_keeps_its_source_and_its_readings() -> None:
    readings = [{"quantity": "weights", "unit": "bytes", "score": "relative", "value": 5, "note": "left out"}]
    row = convert({**VLLM, "quantization": "fp8", "lora": True, "readings": readings})
    assert row["job"]["quant.kind"] == "fp8"
    assert row["readings"] == [
        {"quantity": "weights", "unit": "bytes", "score": "relative", "value": 5,
         "skip": "slots for adapters are in the figure, and the source does not say their rank"}
    ]  # fmt: skip


def test_published_rows_are_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "raw.jsonl").write_text(json.dumps(ROW), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["tools.rows", str(tmp_path / "raw.jsonl")])
    runpy.run_module("tools.rows", run_name="__main__")
    assert json.loads(capsys.readouterr().out) == convert(ROW)


def test_a_framework_that_is_not_known() -> None:
    with pytest.raises(Refused):
        facts_of({**ROW, "stack": "other", "source": {"repo": "somebody/recipes"}})


