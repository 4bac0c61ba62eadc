"""TRL YAML: the samples mean what they should, and every key is read or reported."""

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vramcast.catalog.frameworks import defaults, parse_framework
from vramcast.errors import Refused
from vramcast.readers import read_config
from vramcast.readers.frameworks.trl.keys import CHOOSES, KEYS, NO_EFFECT, OLD, RULED, UNREAD
from vramcast.types.job import Understanding
from vramcast.types.paths import find

HERE = Path(__file__).parent
SAMPLES = HERE / "samples" / "trl"
NAMES: dict[str, str] = tomllib.loads((HERE / "names.toml").read_text())["names"]
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((SAMPLES / "expected.toml").read_text())


def read(text: str, *more: str) -> Understanding:
    return read_config("-", io.StringIO("\n".join([text, *more])))


def said(text: str) -> dict[str, Any]:
    """What a file says by itself, without what is assumed about it."""
    facts = read("model_name_or_path: m\n" + text).winners()
    return {path: fact.value for path, fact in facts.items() if path not in ("framework", "algorithm", "model")}


def complete(understood: Understanding) -> dict[str, Any]:
    given = understood.job().values
    name, version, _ = parse_framework(str(given["framework"]))
    filled = {fact.path: fact.value for fact in defaults(name, version, str(given["algorithm"]), given)}
    return {**filled, **given}


def test_names_are_paths_or_reasons():
    for name, meaning in NAMES.items():
        if meaning != "no memory effect" and not meaning.startswith("not a path: "):
            find(meaning)  # raises for anything else
        assert name == name.strip()


def test_every_sample_has_its_expectation():
    assert {file.name for file in SAMPLES.glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("sample", EXPECTED)
def test_sample(sample: str):
    understood = read_config(str(SAMPLES / sample))
    values = complete(understood)
    wanted = {NAMES[name]: value for name, value in EXPECTED[sample]["expect"].items()}
    assert {path: values.get(path) for path in wanted} == wanted
    assert [unread.key for unread in understood.unread] == EXPECTED[sample]["unread"]
    for name in EXPECTED[sample].get("unset", []):
        assert NAMES[name] not in understood.winners()


def test_origins_have_file_line_and_key():
    facts = read_config(str(SAMPLES / "sft_env.yaml")).winners()
    assert str(facts["seq_len"].origin) == "sft_env.yaml:7  max_length"
    assert str(facts["gpus"].origin) == "sft_env.yaml:3  env.CUDA_VISIBLE_DEVICES"
    assert "assumed: the newest TRL" in str(facts["framework"].origin)
    assert str(facts["algorithm"].origin) == "sft_env.yaml:8: key packing of SFTConfig"
    grpo = read_config(str(SAMPLES / "grpo_server.yaml"))
    assert str(grpo.winners()["algorithm"].origin) == "grpo_server.yaml:1: key use_vllm of GRPOConfig"
    assert [(idle.key, idle.where) for idle in grpo.idle] == [
        ("steps_per_generation", "grpo_server.yaml:5"),
        ("num_iterations", "grpo_server.yaml:6"),
    ]


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("bf16: true", "sft"),
        ("num_generations: 4", "grpo"),
        ("beta: 0.1\nuse_vllm: true", "grpo"),
        ("max_prompt_length: 64\nvllm_device: auto", "grpo"),
        ("beta: 0.1", "dpo"),
        ("loss_type: sigmoid", "dpo"),
        ("loss_type: [sigmoid, bco_pair]", "dpo"),
        ("loss_type: nll", "sft"),
        ("desirable_weight: 1.0\nbeta: 0.1", "kto"),
        ("center_rewards_coefficient: 0.01", "reward"),
    ],
)
def test_trainer_is_told_by_the_keys(text: str, algorithm: str):
    assert read("model_name_or_path: m", text).job().values["algorithm"] == algorithm


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("dtype: auto", {"weights_dtype": "bf16"}),
        ("dtype: null", {"weights_dtype": "bf16"}),
        ("dtype: float16", {"weights_dtype": "fp16"}),
        ("model_init_kwargs: {dtype: float16, attn_implementation: eager}\ndtype: bfloat16",
         {"weights_dtype": "fp16", "attention": "eager"}),
        ("""model_init_kwargs: '{"torch_dtype": "float16"}'""", {"weights_dtype": "fp16"}),
        ("bf16: null", {}),
        ("fp16: false", {}),
        ("bf16: no", {"autocast": False}),
        ("bf16: 'true'", {"autocast": True, "compute_dtype": "bf16"}),
        ("fp16: true", {"autocast": True, "compute_dtype": "fp16"}),
        ("attn_implementation: sdpa", {}),
        ("attn_implementation: kernels-community/flash-attn2", {"attention": "flash"}),
        ("max_length: '2048'", {"seq_len": 2048}),
        ("packing: true\npacking_strategy: wrapped", {"packing": True, "padding": "longest"}),
        ("padding_free: true", {"padding": "free"}),
        ("optim: adamw_torch", {"optimizer": "adamw", "optimizer.impl": "foreach"}),
        ("optim: adafactor", {"optimizer": "adafactor"}),
        ("gradient_checkpointing: false", {"recompute": "none"}),
        ("activation_checkpointing: true\ngradient_checkpointing: false", {"recompute": "full"}),
        ("gradient_checkpointing_kwargs:\n  use_reentrant: true\n  every_n_layers: 2",
         {"recompute.reentrant": True, "recompute.every": 2}),
        ("gradient_checkpointing: true\ngradient_checkpointing_kwargs: {selective: true}", {"recompute": "selective"}),
        ("activation_checkpointing_kwargs: {offload: true}", {"recompute": "offloaded"}),
        ("use_peft: false", {"tuning": "full"}),
        ("use_peft: true\nload_in_8bit: true", {"tuning": "qlora", "quant.kind": "int8"}),
        ("use_peft: true\nload_in_4bit: true\nbnb_4bit_quant_type: fp4", {"tuning": "qlora", "quant.kind": "fp4"}),
        ("use_bnb_nested_quant: true", {}),
        ("lora_target_modules: all-linear", {"lora.targets": ["all-linear"]}),
        ("label_smoothing_factor: 0.1", {"loss": "full"}),
        ("label_smoothing_factor: 0.0", {}),
        ("use_liger_kernel: true\nactivation_offloading: true",
         {"fused_kernels": "liger", "offload.activations": "cpu"}),
        ("per_device_eval_batch_size: 4", {}),
        ("per_device_eval_batch_size: 4\neval_strategy: no", {}),
        ("per_device_eval_batch_size: 4\neval_strategy: steps", {}),
        ("ddp_bucket_cap_mb: 25", {"buckets": 25 * 2**20}),
        ("env: {CUDA_VISIBLE_DEVICES: 3, PYTORCH_CUDA_ALLOC_CONF: x}", {"gpus": 1, "allocator": "x"}),
        ("env: {CUDA_VISIBLE_DEVICES: ''}", {}),
        ("num_generations: 4\nbeta: 0.04\nuse_peft: true",
         {"group": 4, "tuning": "lora", "reference.kind": "adapter_off"}),
        ("use_vllm: false\nloss_type: dr_grpo", {"engine.kind": "hf", "grpo.variant": "dr_grpo"}),
        ("reward_model_name_or_path: org/rm", {"reward.kind": "model", "reward.model": "org/rm"}),
        ("reward_funcs: [accuracy_reward]", {"reward.kind": "rules"}),
        ("learning_rate: 2e-5\nlogging_steps: 1\nreport_to: none", {}),
    ],
)  # fmt: skip
def test_keys(text: str, facts: dict[str, Any]):
    assert said(text) == facts


@pytest.mark.parametrize(
    ("text", "error", "where"),
    [
        ("dtype: int4", "dtype: 'int4' is none of TRL's values: auto, bfloat16", "stdin:2"),
        ("dtype: [a]", "dtype: ['a'] is none of TRL's values", "stdin:2"),
        (
            "optim: adamw_torch_fussed",
            "optim: 'adamw_torch_fussed' is not modelled; known: adamw_torch_fused",
            "stdin:2",
        ),
        ("attn_implementation: flex_attention", "attn_implementation: 'flex_attention' is not modelled", "stdin:2"),
        ("per_device_train_batch_size: 0", "micro_batch: must be >= 1, not 0", "stdin:2  per_device_train_batch_size"),
        ("per_device_train_batch_size: yes", "micro_batch: true is not a whole number", "stdin:2  per_device"),
        ("max_length: long", "seq_len: 'long' is not a whole number", "stdin:2  max_length"),
        ("packing: maybe", "packing: 'maybe' is not true or false", "stdin:2"),
        ("use_peft: 3", "use_peft: 3 is not true or false", "stdin:2"),
        ("vllm_gpu_memory_utilization: 1.5", "engine.fraction: must be <= 1", "stdin:2"),
        ("vllm_mode: both", "vllm_mode: 'both' is not modelled; known: colocate, server", "stdin:2"),
        ("bf16: true\nfp16: true", "bf16 and fp16 exclude each other", "stdin:3"),
        ("load_in_4bit: true\nload_in_8bit: true", "load_in_4bit and load_in_8bit exclude each other", "stdin:3"),
        ("num_generations: 4\ngeneration_batch_size: 6", "6 is not divisible by num_generations = 4", "stdin:3"),
        ("generation_batch_size: .inf", "generation_batch_size: inf is not a whole number", "stdin:2"),
        ("use_vllm: true\nbeta: [1]", "beta: [1] is not a number", "stdin:3"),
        ("env: text", "env: 'text' is not a mapping", "stdin:2"),
        ("gradient_checkpointing_kwargs: '{'", "gradient_checkpointing_kwargs: ", "stdin:2"),
    ],
)
def test_wrong_values(text: str, error: str, where: str):
    with pytest.raises(Refused) as refused:
        read("model_name_or_path: m", text)
    assert len(refused.value.mistakes) == 1
    assert error in refused.value.mistakes[0].fact
    assert refused.value.mistakes[0].context["from"].startswith(where)


def test_all_wrong_values_at_once():
    with pytest.raises(Refused) as refused:
        read("max_length: 0", "optim: best", "use_peft: maybe", "lora_r: -1")
    assert len(refused.value.mistakes) == 4


def test_unknown_and_unmodelled_keys_are_reported_with_their_lines():
    understood = read("max_length: 64", "max_lenght: 32", "neftune_noise_alpha: 5",
                      "gradient_checkpointing_kwargs: {determinism_check: none}")  # fmt: skip
    assert {(unread.key, unread.where) for unread in understood.unread} == {
        ("max_lenght", "stdin:2"),
        ("neftune_noise_alpha", "stdin:3"),
        ("gradient_checkpointing_kwargs.determinism_check", "stdin:4"),
    }


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("dtype: auto", "stdin:2: dtype means the checkpoint's dtype, which is taken to be bf16"),
        ("max_seq_length: 64", "stdin: max_seq_length was read up to trl 0.19; priced as trl 0.19.0, --set framework="),
        ("torch_dtype: bfloat16", "stdin: torch_dtype was read up to trl 0.26; priced as trl 0.26.0, "),
        (
            "max_seq_length: 64\nloss_type: nll",
            "stdin: max_seq_length was read up to trl 0.19, and loss_type is read since 0.23: no version reads both; "
            "priced as trl 1.16.0, ",
        ),
        (
            "eval_strategy: steps\nper_device_eval_batch_size: 4",
            "stdin:3: per_device_eval_batch_size asks for evaluation, which is left out: 4 sequences at once, not more "
            "than training's 8",
        ),
        (
            "eval_strategy: epoch\nper_device_train_batch_size: 1",
            "stdin:2: eval_strategy asks for evaluation, which is left out: 8 sequences at once, more than",
        ),
        ("auto_find_batch_size: true", "stdin:2: auto_find_batch_size makes the micro-batch smaller"),
        ("load_in_4bit: true", "stdin:2: load_in_4bit without use_peft"),
    ],
)
def test_warnings(text: str, warning: str):
    warnings = [told for told in read("model_name_or_path: m", text).warnings if "no key tells the trainer" not in told]
    assert len(warnings) == 1
    assert warnings[0].startswith(warning)


@pytest.mark.parametrize(
    ("name", "text", "algorithm", "told"),
    [
        ("a.yaml", "", "sft", "a.yaml: no key tells the trainer: priced as sft, TRL's plainest trainer; --set"),
        ("reward_config.yaml", "", "reward", "priced as reward, as its name says; --set algorithm=... names another"),
        ("reward_config.yaml", "packing: true\n", "sft", ""),
        ("rloo.yaml", "reward_funcs: [a.b]\n", "grpo", ""),
    ],
)
def test_a_trainer_that_no_key_tells_is_a_stated_assumption(
    tmp_path: Path, name: str, text: str, algorithm: str, told: str
):
    (tmp_path / name).write_text(f"model_name_or_path: m\n{text}")
    understood = read_config(str(tmp_path / name))
    assert understood.job().values["algorithm"] == algorithm
    assert [told in warning for warning in understood.warnings] == [True] * bool(told)


@pytest.mark.parametrize(
    ("keys", "version"),
    [
        ("dtype: bfloat16", "1.16.0"),
        ("torch_dtype: bfloat16", "0.26.0"),
        ("torch_dtype: bfloat16\nmax_seq_length: 8", "0.19.0"),
        ("max_prompt_length: 8\nuse_vllm: true", "0.27.0"),
        ("max_prompt_length: 8\nbeta: 0.1", "0.28.0"),
        ("use_vllm: true\nvllm_device: cuda:7", "0.15.0"),
        ("vllm_device: auto\nvllm_mode: server", "1.16.0"),
    ],
)
def test_keys_that_came_or_went_decide_the_version(keys: str, version: str):
    assert read("model_name_or_path: m", keys).job().values["framework"] == f"trl=={version}"


@pytest.mark.parametrize(
    ("keys", "facts"),
    [
        ("use_vllm: true\nvllm_device: cuda:7\nvllm_dtype: float16",
         {"engine.kind": "vllm", "engine.process": "server", "engine.dtype": "fp16"}),
        ("num_generations: 4\nsteps_per_generation: 2\ngradient_accumulation_steps: 2",
         {"group": 4, "accumulation": 2}),
        ("model_max_length: 512", {"seq_len": 512}),
    ],
)  # fmt: skip
def test_keys_of_older_versions_and_of_generation(keys: str, facts: dict[str, Any]):
    assert said(keys) == facts


def test_more_steps_than_are_learned_ask_for_the_prompts():
    understood = read("num_generations: 4", "steps_per_generation: 8", "per_device_train_batch_size: 2")
    assert [(item.path, item.where) for item in understood.missing] == [
        ("prompts_per_step", "stdin:2  steps_per_generation generates 2 × 8 responses a GPU at once: this × GPUs / "
         "num_generations are the prompts")
    ]  # fmt: skip


def test_an_old_name_beside_the_new_one_has_no_effect():
    understood = read("max_length: 64", "max_seq_length: 32")
    assert understood.job().values["seq_len"] == 64
    assert [(idle.key, idle.value, idle.why) for idle in understood.idle] == [
        ("max_seq_length", 32, "max_length counts")
    ]


def test_a_key_is_in_one_table_only():
    tables = [set(KEYS), set(RULED), set(CHOOSES), set(UNREAD), set(NO_EFFECT), set(OLD)]
    for index, table in enumerate(tables):
        for other in tables[index + 1 :]:
            assert not table & other


def test_no_length_limit_asks_for_the_length():
    assert [(item.path, item.where) for item in read("max_length: null").missing] == [
        ("seq_len", "stdin:1  max_length is null: no length limit")
    ]
