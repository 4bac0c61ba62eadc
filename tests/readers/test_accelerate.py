"""accelerate's YAML: alone, beside a trainer's configuration, and through a launcher's options."""

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vramcast.errors import Refused
from vramcast.readers import read_config
from vramcast.readers.launchers import _PRESETS  # pyright: ignore[reportPrivateUsage]
from vramcast.types.job import Understanding

HERE = Path(__file__).parent
SAMPLES = HERE / "samples" / "accelerate"
EXAMPLES = HERE.parent.parent / "examples"
NAMES: dict[str, str] = tomllib.loads((HERE / "names.toml").read_text())["names"]
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((SAMPLES / "expected.toml").read_text())


def read(text: str) -> Understanding:
    return read_config("-", io.StringIO(text))


def test_every_sample_has_its_expectation():
    assert {file.name for file in SAMPLES.glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("sample", EXPECTED)
def test_sample(sample: str):
    understood = read_config(str(SAMPLES / sample))
    values = understood.job().values
    wanted = {NAMES[name]: value for name, value in EXPECTED[sample]["expect"].items()}
    assert {path: values.get(path) for path in wanted} == wanted
    assert [unread.key for unread in understood.unread] == EXPECTED[sample].get("unread", [])
    assert understood.warnings == []


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("mixed_precision: no", {"gpus": 1, "shard": "none"}),
        ("distributed_type: MULTI_GPU\nmixed_precision: fp16",
         {"compute_dtype": "fp16", "autocast": True, "shard": "none"}),
        ("distributed_type: FSDP\nmixed_precision: bf16\n"
         "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: 'false'}",
         {"compute_dtype": "bf16", "shard": "fsdp2", "reshard": False, "wrap": "none"}),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: NO_SHARD}", {"shard": "none", "wrap": "none"}),
        ("distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_sharding_strategy: '5'}",
         {"gpus": 8, "shard": "fsdp1", "reshard": False, "shard_size": 8, "replicas": 1, "wrap": "none"}),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_activation_checkpointing: true, fsdp_version: 1}",
         {"shard": "fsdp1", "wrap": "none", "recompute": "full"}),
        ("machine_rank: 0\nnum_processes: 2\ndeepspeed_config: {gradient_accumulation_steps: auto}",
         {"gpus": 2, "shard": "zero2"}),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 1, offload_optimizer_device: nvme}",
         {"shard": "zero1", "offload.optimizer": "nvme"}),
    ],
)  # fmt: skip
def test_rules(text: str, values: dict[str, Any]):
    assert read(f"compute_environment: LOCAL_MACHINE\n{text}").job().values == values


def test_what_accelerate_assumes_is_said():
    facts = read("distributed_type: FSDP\nfsdp_config: {}\n").winners()
    assert str(facts["shard"].origin) == "accelerate 1.15 default (fsdp_version 1)"
    assert "NO_WRAP: one unit is the whole model" in str(facts["wrap"].origin)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("distributed_type: MEGATRON_LM",
         "error: distributed_type MEGATRON_LM is not modelled yet\n  from   stdin:1\n"
         "  known  NO, MULTI_GPU, FSDP, DEEPSPEED"),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 3",
         "error: fsdp_config.fsdp_version: 3 is not 1 or 2\n  from  stdin:3"),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_reshard_after_forward: true",
         "error: fsdp_config.fsdp_reshard_after_forward: true is for fsdp_version 2; version 1 takes FULL_SHARD, "
         "SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2\n  from  stdin:3"),
        ("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 6\n  fsdp_auto_wrap_policy: ALL",
         "error: fsdp_config.fsdp_sharding_strategy: 6 is not one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, "
         "HYBRID_SHARD, HYBRID_SHARD_ZERO2, or its number from 1\n  from  stdin:3\n"
         "error: fsdp_config.fsdp_auto_wrap_policy: 'ALL' is not modelled; known: NO_WRAP, TRANSFORMER_BASED_WRAP, "
         "SIZE_BASED_WRAP\n  from  stdin:4"),
        ("distributed_type: MULTI_GPU\nnum_processes: 0",
         "error: gpus: must be >= 1, not 0\n  from     stdin:2  num_processes\n"
         "  allowed  a whole number such as 4096 or 4k"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 0}",
         "error: deepspeed_config.zero_stage = 0 is not modelled yet\n  from  stdin:2\n"
         "  why   DeepSpeed without ZeRO has master weights of its own\n"
         "  help  leave the key out to price the job without it"),
        ("distributed_type: FSDP\nfp8_config: {backend: TE}",
         "error: fp8_config = {'backend': 'TE'} is not modelled yet\n  from  stdin:2\n  why   training in FP8\n"
         "  help  leave the key out to price the job without it"),
        ("distributed_type: FSDP\nfsdp_config: 7", "error: fsdp_config: 7 is not a mapping\n  from  stdin:2"),
    ],
)  # fmt: skip
def test_mistakes(text: str, error: str):
    with pytest.raises(Refused) as refused:
        read(text)
    assert str(refused.value) == error


def test_what_only_the_user_knows():
    hybrid = read("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD")
    assert [missing.path for missing in hybrid.missing] == ["shard_size"]


def test_a_deepspeed_file_is_read(tmp_path: Path):
    (tmp_path / "z3.json").write_text('{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}')
    (tmp_path / "a.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: z3.json")
    facts = read_config(str(tmp_path / "a.yaml")).winners()
    assert {path: (facts[path].value, facts[path].origin.where) for path in ("shard", "offload.weights")} == {
        "shard": ("zero3", "z3.json"),
        "offload.weights": ("cpu", "z3.json"),
    }


def test_weights_stay_below_stage_3():
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_param_device: cpu}"
    assert read(text).warnings == ["stdin:2: deepspeed_config.offload_param_device has an effect at zero_stage 3 only"]


def test_unread_keys():
    understood = read(
        "distributed_type: FSDP\nmachine_rank: 0\nfsdp_config:\n  fsdp_forward_prefetch: true\n"
        "  fsdp_state_dict_type: FULL_STATE_DICT\n  fsdp_use_orig_params: true\n  fsdp_colour: red\ndynamo_config: {}\n"
    )
    assert [(unread.key, unread.where) for unread in understood.unread] == [
        ("fsdp_config.fsdp_forward_prefetch", "stdin:4"),
        ("fsdp_config.fsdp_state_dict_type", "stdin:5"),
        ("fsdp_config.fsdp_colour", "stdin:7"),
    ]


def test_beside_a_trainer():
    both = read_config(str(EXAMPLES / "trl_grpo.yaml")) + read_config(str(EXAMPLES / "accelerate_fsdp2.yaml"))
    values = both.job().values
    wanted = {"framework": "trl==1.16.0", "algorithm": "grpo", "model": "Qwen/Qwen2.5-7B", "weights_dtype": "bf16",
              "autocast": True, "gpus": 4, "shard": "fsdp2", "wrap": "block", "engine.kind": "vllm",
              "engine.process": "trainer", "engine.fraction": 0.3, "group": 8, "micro_batch": 8, "accumulation": 4,
              "response_len": 1024, "reference.kind": "none", "recompute": "full"}  # fmt: skip
    assert {path: values[path] for path in wanted} == wanted
    assert (both.unread, both.warnings, both.missing) == ([], [], [])


@pytest.mark.parametrize("preset", _PRESETS)
def test_trl_presets(preset: str):
    values = read(f"trl sft --model_name_or_path m --accelerate_config {preset}").job().values
    shard = {"single_gpu": "none", "multi_gpu": "none"}.get(preset, preset)
    assert (values["shard"], values["gpus"]) == (shard, 1 if preset == "single_gpu" else 8)
