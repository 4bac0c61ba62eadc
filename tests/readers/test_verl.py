"""verl: hydra's overrides, OmegaConf's interpolations, and what the keys mean; in scripts, lists and YAML."""

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vramcast.catalog.frameworks import defaults, framework, parse_framework
from vramcast.errors import Refused
from vramcast.readers import native_keys, read_config
from vramcast.readers.verl_keys import CRITIC, DEFAULTS, KEYS, NOT_MODELLED, OLD, RULED, known_key
from vramcast.readers.verl_native import NATIVE
from vramcast.readers.verl_overrides import parse_value
from vramcast.types.job import Understanding
from vramcast.types.paths import find

HERE = Path(__file__).parent
SAMPLES = HERE / "samples" / "verl"
NAMES: dict[str, str] = tomllib.loads((HERE / "names.toml").read_text())["names"]
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((SAMPLES / "expected.toml").read_text())
NOT_YET = {"megatron.sh"}
A, R, M = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
COMMAND = "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "


def read(text: str) -> Understanding:
    return read_config("-", io.StringIO(text))


def said(*overrides: str) -> dict[str, Any]:
    """What overrides say by themselves, without what is assumed and without the algorithm."""
    facts = read(COMMAND + " ".join(overrides)).winners()
    return {path: fact.value for path, fact in facts.items() if path not in ("framework", "algorithm", "grpo.variant")}


def complete(understood: Understanding) -> dict[str, Any]:
    given = understood.job().values
    name, version, _ = parse_framework(str(given["framework"]))
    filled = {fact.path: fact.value for fact in defaults(name, version, str(given["algorithm"]), given)}
    return {**filled, **given}


def test_every_sample_has_its_expectation():
    assert {file.name for file in SAMPLES.glob("*.*")} - {"expected.toml"} == {*EXPECTED, *NOT_YET}


@pytest.mark.parametrize("sample", EXPECTED)
def test_sample(sample: str):
    understood, wanted = read_config(str(SAMPLES / sample)), EXPECTED[sample]
    values = complete(understood)
    expected = {NAMES[name]: value for name, value in wanted["expect"].items()}
    expected |= {NAMES[name]: None for name in wanted.get("null", [])}
    assert {path: values.get(path, "unset") if path not in ("critic.kind",) else values.get(path, "none")
            for path in expected} == expected  # fmt: skip
    assert [unread.key for unread in understood.unread] == wanted.get("unread", [])
    assert len(understood.warnings) == wanted.get("warnings", 0)


def test_the_backend_that_is_not_modelled():
    with pytest.raises(Refused) as refused:
        read_config(str(SAMPLES / "megatron.sh"))
    assert str(refused.value) == (
        "error: verl's Megatron backend is not modelled yet\n"
        "  from  megatron.sh:1  --config-name ppo_megatron_trainer.yaml"
    )
    for override in ("model_engine=megatron", f"{A}strategy=megatron", f"{A}strategy=veomni"):
        with pytest.raises(Refused, match=r"verl's (Megatron|VeOmni) backend is not modelled yet"):
            read(COMMAND + override)


def test_origins_name_line_and_key():
    facts = read_config(str(SAMPLES / "continued.sh")).winners()
    assert str(facts["gpus"].origin) == "continued.sh:6  trainer.n_gpus_per_node * trainer.nnodes"
    assert str(facts["critic.micro_batch"].origin) == "continued.sh:7  critic.ppo_micro_batch_size_per_gpu"
    assert facts["framework"].value == "verl==0.9.1"
    assert "assumed: the newest verl" in str(facts["framework"].origin)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None), ("Null", None), ("None", "None"), ("true", True), ("FALSE", False), ("yes", "yes"),
        ("8", 8), ("-1", -1), ("1_000", 1000), ("007", "007"), (".6", 0.6), ("1e-6", 1e-6), ("1.", 1.0), ("0.5", 0.5),
        ("", ""), ("org/m-7b", "org/m-7b"), ("'a b'", "a b"), ('"8"', "8"), (r"'it\'s'", "it's"),
        ("[]", []), ("[a,'b,c',1]", ["a", "b,c", 1]), ("[[1,2],[3]]", [[1, 2], [3]]),
        ("{a:1,b:{c:x}}", {"a": 1, "b": {"c": "x"}}),
    ],
)  # fmt: skip
def test_values(text: str, value: Any):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    ("overrides", "values"),
    [
        ([f"{R}n=4", f"{R}n=8"], {"group": 8}),
        ([f"{R}n=4", f"~{R}n"], {}),
        ([f"++{R}n=4"], {"group": 4}),
        ([f"+{M}override_config={{attn_implementation:eager}}"], {"attention": "eager"}),
        ([f"+{M}override_config.attn_implementation=flash_attention_3"], {"attention": "flash"}),
        ([f"{R}max_model_len=null"], {}),
        (["data.max_response_length=2048"], {"response_len": 2048, "seq_len": 2560}),
        (["trainer.nnodes=4"], {"gpus": 32}),
        (["trainer.nnodes=2", "trainer.n_gpus_per_node=4"], {"gpus_per_node": 4, "gpus": 8}),
        ([f"{A}fsdp_config.fsdp_size=-1"], {}),
        (["trainer.nnodes=2", f"{A}fsdp_config.fsdp_size=8"], {"gpus": 16, "shard_size": 8, "replicas": 2}),
        ([f"{A}fsdp_config.offload_policy=True"],
         {"offload.weights": "cpu", "offload.gradients": "cpu", "offload.optimizer": "cpu"}),
        ([f"{A}fsdp_config.dtype=float16"], {"compute_dtype": "fp16"}),
        ([f"{A}fsdp_config.dtype=float16", f"+{A}fsdp_config.mixed_precision.param_dtype=bf16"],
         {"compute_dtype": "bf16"}),
        ([f"{A}fsdp_config.wrap_policy.min_num_params=1000"], {"wrap": "size"}),
        ([f"{A}ppo_micro_batch_size_per_gpu=4"], {"micro_batch": 4}),
        ([f"{A}use_dynamic_bsz=True"],
         {"token_budget": 16384, "logprob.token_budget": 16384, "reference.logprob.token_budget": 16384}),
        ([f"{A}use_dynamic_bsz=True", f"{R}log_prob_use_dynamic_bsz=False", f"{R}log_prob_micro_batch_size_per_gpu=8"],
         {"token_budget": 16384, "logprob.micro_batch": 8, "reference.logprob.token_budget": 16384}),
        ([f"{A}ppo_micro_batch_size_per_gpu=4", f"{A}ppo_max_token_len_per_gpu=9000"], {"micro_batch": 4}),
        ([f"{R}log_prob_micro_batch_size=16", "trainer.n_gpus_per_node=4"],
         {"logprob.micro_batch": 4, "gpus": 4, "gpus_per_node": 4}),
        ([f"{A}entropy_coeff=0.001"], {"entropy": "grad"}),
        ([f"{A}entropy_coeff=0"], {"entropy": "none"}),
        ([f"{A}entropy_coeff=0", f"{A}calculate_entropy=True"], {"entropy": "grad"}),
        ([f"{A}calculate_entropy=True", f"{A}entropy_from_logits_with_chunking=True"], {"entropy": "chunked"}),
        ([f"{A}use_kl_loss=False"], {"reference.kind": "none"}),
        (["algorithm.use_kl_in_reward=True"], {"reference.kind": "copy"}),
        (["algorithm.use_kl_in_reward=True", f"{M}lora_rank=8"],
         {"reference.kind": "adapter_off", "tuning": "lora", "lora.rank": 8}),
        ([f"{M}lora_rank=0"], {"tuning": "full"}),
        ([f"{M}lora_rank=8", f"{M}lora.merge=True"], {"tuning": "lora", "lora.rank": 8, "engine.sleep": "2"}),
        ([f"{M}lora_rank=8", f"{M}target_modules=[q_proj,v_proj]", f"{R}free_cache_engine=True"],
         {"tuning": "lora", "lora.rank": 8, "lora.targets": ["q_proj", "v_proj"], "engine.sleep": "1"}),
        ([f"{R}free_cache_engine=False"], {"engine.sleep": "none"}),
        ([f"{R}free_cache_engine=true"], {"engine.sleep": "2"}),
        ([f"{M}use_fused_kernels=True", f"{M}use_liger=True"], {"loss": "fused", "fused_kernels": "liger"}),
        ([f"{M}use_remove_padding=False"], {"padding": "max"}),
        ([f"{A}optim.optimizer_impl=bitsandbytes.optim", f"{A}optim.optimizer=AdamW8bit"], {"optimizer": "adamw_8bit"}),
        ([f"{A}optim.optimizer=SGD"], {"optimizer": "sgd", "optimizer.impl": "foreach"}),
        ([f"{R}checkpoint_engine.update_weights_bucket_megabytes=4096"], {"engine.sync_bucket_bytes": 4 << 30}),
        (["reward.reward_model.enable=True", "reward.reward_model.model_path=org/rm"],
         {"reward.kind": "model", "reward.model": "org/rm"}),
        (["critic.enable=True", "critic.model.path=org/c", "critic.model.lora_rank=4"],
         {"critic.kind": "model", "critic.model": "org/c", "critic.tuning": "lora", "critic.lora.rank": 4}),
        (["critic.enable=True", "critic.ppo_micro_batch_size=16"], {"critic.kind": "model", "critic.micro_batch": 2}),
    ],
)  # fmt: skip
def test_rules(overrides: list[str], values: dict[str, Any]):
    assert said(*overrides) == values


@pytest.mark.parametrize(
    ("estimator", "more", "variant"),
    [("grpo", "", "grpo"), ("rloo", "", "rloo"), ("reinforce_plus_plus", "", "reinforce_pp"),
     ("grpo", f"{A}policy_loss.loss_mode=gspo", "gspo"), ("remax", "", None)],
)  # fmt: skip
def test_variants(estimator: str, more: str, variant: str | None):
    understood = read(f"python -m verl.trainer.main_ppo algorithm.adv_estimator={estimator} {more}")
    values = understood.job().values
    assert (values["algorithm"], values.get("grpo.variant")) == ("grpo", variant)
    assert bool(understood.warnings) == (variant is None)


def test_gae_is_the_default_and_trains_a_critic():
    facts = read("python -m verl.trainer.main_ppo").winners()
    assert (facts["algorithm"].value, facts["critic.kind"].value) == ("ppo", "model")
    assert str(facts["algorithm"].origin) == "verl 0.9.1 default (algorithm.adv_estimator gae)"


def test_keys_of_a_critic_that_is_not_there():
    understood = read(COMMAND + "critic.fsdp.param_offload=True")
    assert understood.warnings == [
        "stdin:1: critic.fsdp.param_offload and other keys of the critic have no effect: there is none"
    ]
    assert "critic.offload.weights" not in understood.winners()


def test_unread_keys():
    overrides = f"{R}cudagraph_capture_sizes=[1,2] {A}use_torch_compile=True {A}colour=red trainer.logger=[a]"
    understood = read(COMMAND + overrides)
    assert [(unread.key, unread.where) for unread in understood.unread] == [
        (f"{R}cudagraph_capture_sizes", "stdin:1"),
        (f"{A}colour", "stdin:1"),
    ]


def test_wrong_values_are_all_said_at_once():
    with pytest.raises(Refused) as refused:
        read(COMMAND + f"\\\n  {R}n=two \\\n  {R}name=tgi trainer.nnodes=0 {A}strategy=ddp {A}optim.optimizer=Foo")
    assert str(refused.value) == (
        "error: group: 'two' is not a whole number such as 4096 or 4k\n"
        "  from     stdin:2  actor_rollout_ref.rollout.n\n"
        "  allowed  a whole number such as 4096 or 4k\n"
        "error: actor_rollout_ref.rollout.name: 'tgi' is not modelled; known: vllm, sglang, hf, trtllm\n"
        "  from  stdin:3\n"
        "error: actor_rollout_ref.actor.strategy: verl's ddp backend is not modelled yet; known: fsdp, fsdp2\n"
        "  from  stdin:3\n"
        "error: trainer.nnodes: 0 is not a whole number above 0\n"
        "  from  stdin:3\n"
        "error: actor_rollout_ref.actor.optim.optimizer: 'torch.optim.Foo' is not modelled; known: torch.optim.SGD, "
        "torch.optim.Adam, torch.optim.AdamW\n"
        "  from  stdin:3"
    )


def test_words_that_are_no_overrides():
    with pytest.raises(Refused) as refused:
        read(COMMAND + "\\\n rollout.n 8")
    assert str(refused.value) == (
        "error: 'rollout.n' is no override key=value\n  from  stdin:2\n"
        "error: '8' is no override key=value\n  from  stdin:2"
    )


def test_a_micro_batch_over_all_gpus_has_to_divide():
    with pytest.raises(Refused, match="12 sequences over all GPUs do not divide among 8 data-parallel ranks"):
        read(COMMAND + f"{A}ppo_micro_batch_size=12")


def test_variables_that_are_not_set_are_asked_for():
    understood = read(
        COMMAND + f"\\\n  {A}ppo_micro_batch_size_per_gpu=$MICRO \\\n  data.max_prompt_length=$((PROMPT + 1)) \\\n"
        f"  data.train_files=$FILES trainer.experiment_name=$(date) trainer.nnodes=$(nodes) {R}layered_summon=$L \\\n"
        f"  {A}ppo_max_token_len_per_gpu=$BUDGET $MORE"
    )
    assert [(missing.path, missing.where) for missing in understood.missing] == [
        ("micro_batch", f"stdin:2  {A}ppo_micro_batch_size_per_gpu: $MICRO is not set in the script"),
        ("prompt_len", "stdin:3  data.max_prompt_length: $PROMPT is not set in the script"),
        ("gpus", "stdin:4  trainer.nnodes: $(nodes) is not executed"),
    ]
    assert [unread.key for unread in understood.unread] == [f"{R}layered_summon"]
    assert understood.warnings == ["stdin:5: $MORE is not set in the script: what it would add is not read"]
    assert not {"gpus", "seq_len", "prompt_len", "micro_batch"} & set(understood.winners())


def test_interpolation_follows_unknown_and_exported_variables():
    understood = read(
        "export N=4\nX=1\n" + COMMAND + f"{R}n='${{oc.env:N}}' data.train_batch_size='${{oc.env:M,64}}' "
        f"{A}ppo_mini_batch_size='${{data.train_batch_size}}' {R}max_num_seqs='${{oc.env:X}}' "
        f"data.max_prompt_length=$P {R}max_model_len='${{data.max_prompt_length}}'"
    )
    values = understood.job().values
    assert (values["group"], values["prompts_per_step"], values["mini_batch"]) == (4, 64, 64)
    assert {missing.path for missing in understood.missing} == {"engine.max_seqs", "prompt_len", "engine.max_len"}


def test_an_interpolation_that_names_nothing():
    sizes = f"data.train_batch_size='${{oc.nothing:}}' {A}ppo_mini_batch_size='${{'"
    with pytest.raises(Refused) as refused:
        read(COMMAND + f"{R}n='${{a.b.c}}' {sizes} {A}optim.lr='${{'")
    assert [str(mistake).splitlines()[0] for mistake in refused.value.mistakes] == [
        "error: actor_rollout_ref.rollout.n: ${a.b.c} names no value",
        "error: data.train_batch_size: ${oc.nothing:} names no value",
        "error: actor_rollout_ref.actor.ppo_mini_batch_size: ${ names no value",
    ]


def test_the_environment_of_this_process_is_not_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_SIZE", "7")
    understood = read(COMMAND + f"{R}n='${{oc.env:SOME_SIZE}}' data.train_batch_size=$SOME_SIZE")
    assert {missing.path for missing in understood.missing} == {"group", "prompts_per_step"}


@pytest.mark.parametrize(
    "text",
    [
        f'["algorithm.adv_estimator=grpo", "{R}n=8"]',
        f"['algorithm.adv_estimator=grpo',\n  '{R}n=8',  # eight\n]",
        "import subprocess\nsubprocess.run(['python3', '-m', 'verl.trainer.main_ppo', "
        f"'algorithm.adv_estimator=grpo', '{R}n=8'])",
    ],
)
def test_lists_of_arguments(tmp_path: Path, text: str):
    (tmp_path / "run.py").write_text(text)
    values = read_config(str(tmp_path / "run.py")).job().values
    assert (values["algorithm"], values["group"]) == ("grpo", 8)
    if text.startswith("["):
        assert read(text).job().values["group"] == 8


def test_what_a_list_computes_is_asked_for(tmp_path: Path):
    (tmp_path / "run.py").write_text(f'x = ["algorithm.adv_estimator=grpo", f"{R}n={{N}}", make(), *more]')
    understood = read_config(str(tmp_path / "run.py"))
    assert [(missing.path, missing.where) for missing in understood.missing] == [
        ("group", f"run.py:1  {R}n: N is not executed")
    ]
    assert [text.partition(": ")[2] for text in understood.warnings] == [
        "make() is not executed: what it would add is not read",
        "*more is not executed: what it would add is not read",
    ]


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("run.sh", "#!/bin/bash\nls\n",
         "error: run.sh has no training command\n"
         "  looked for  python -m verl.trainer.main_ppo, trl sft|dpo|kto|reward|grpo|rloo, accelerate launch, "
         "torchrun or deepspeed with a script\n"
         "  help        nothing is executed"),
        ("run.sh", "ls\ndeepspeed --module openrlhf.cli.train_dpo --x 1",
         "error: run.sh:2 starts OpenRLHF, which is not read yet\n"
         "  read  python -m verl.trainer.main_ppo, trl sft|dpo|kto|reward|grpo|rloo, accelerate launch, torchrun or "
         "deepspeed with a script"),
        ("run.py", "x = 1", "error: run.py has no list of overrides key=value, and no training command in a list\n"
         "  help  nothing is executed: paste the list of arguments, or the script that is run"),
        ("run.py", "x = (", "error: run.py is not Python: '(' was never closed"),
    ],
)  # fmt: skip
def test_scripts_without_a_training_command(tmp_path: Path, name: str, text: str, error: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(Refused) as refused:
        read_config(str(tmp_path / name))
    assert str(refused.value) == error


def test_a_second_training_command_is_said():
    understood = read(f"{COMMAND}{R}n=2\npython -m verl.trainer.main_ppo {R}n=4\n")
    assert understood.job().values["group"] == 2
    assert understood.warnings == ["stdin:2: this training command is not read"]


def test_a_command_that_is_not_read_does_not_hide_one_that_is():
    understood = read(f"deepspeed --module openrlhf.cli.train_sft --x 1\n{COMMAND}{R}n=2\n")
    assert understood.job().values["group"] == 2
    assert understood.warnings == ["stdin:1: this training command is not read"]


def test_another_tree_of_defaults_is_said():
    assert read(COMMAND + "--config-name my_trainer").warnings == [
        "stdin:1: the defaults of my_trainer are not read: those of ppo_trainer are assumed"
    ]
    assert read(COMMAND + "--config-name=ppo_trainer.yaml -cp dir").warnings == []


def test_tables_do_not_overlap():
    tables = [set(table) for table in (KEYS, CRITIC, OLD, NOT_MODELLED)]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert set(KEYS) & set(RULED) == {"trainer.n_gpus_per_node"}
    assert all(known_key(new) for new, _ in OLD.values())


def test_every_path_of_the_tables_exists():
    paths = [path for path, _ in [*KEYS.values(), *CRITIC.values()]] + [path for fed in RULED.values() for path in fed]
    for path in (*paths, *NATIVE, *(row.path for row in framework("verl").defaults)):
        find(path)


def test_the_defaults_of_rules_are_those_of_the_catalogue():
    rows = {row.path: row.value for row in framework("verl").defaults if not row.until and not row.when}
    for key, value in DEFAULTS.items():
        if key in KEYS:
            assert rows[KEYS[key][0]] == value
    assert rows["seq_len"] == DEFAULTS["data.max_prompt_length"] + DEFAULTS["data.max_response_length"]
    assert rows["gpus"] == DEFAULTS["trainer.n_gpus_per_node"] * DEFAULTS["trainer.nnodes"]


def test_defaults_by_version():
    def at(version: str, path: str) -> Any:
        return next(fact.value for fact in defaults("verl", version, "grpo", {}) if fact.path == path)

    assert [at(version, "padding") for version in ("0.6.1", "0.7.0")] == ["max", "free"]
    assert [at(version, "engine.eager") for version in ("0.5.0", "0.6.0")] == [True, False]
    assert [at(version, "engine.process") for version in ("0.6.0", "0.9.1")] == ["trainer", "own"]
    assert [at(version, "reference.weights_dtype") for version in ("0.5.0", "0.9.1")] == ["bf16", "fp32"]
    assert [at(version, "engine.sync_bucket_bytes") for version in ("0.6.0", "0.9.1")] == [512 << 20, 2 << 30]


EDITS: dict[str, list[Any]] = {
    "model": ["org/m"], "gpus": [4, 16], "gpus_per_node": [4], "prompts_per_step": [64], "prompt_len": [256],
    "response_len": [256], "group": [4], "mini_batch": [16], "micro_batch": [2], "token_budget": [8192],
    "logprob.micro_batch": [2], "reference.logprob.micro_batch": [2], "shard": ["fsdp1", "fsdp2"], "shard_size": [4],
    "reshard": [False], "weights_dtype": ["bf16", "fp32"], "offload.weights": ["cpu", "none"],
    "offload.optimizer": ["cpu", "none"], "offload.activations": ["cpu"], "recompute": ["full", "none"],
    "padding": ["free", "max"], "loss": ["fused", "full"], "fused_kernels": ["liger"],
    "attention": ["flash", "eager", None], "tuning": ["full", "lora"], "lora.rank": [8], "ulysses": [2],
    "reference.kind": ["none", "copy"],
    "engine.kind": ["vllm", "sglang"], "engine.fraction": [0.4], "engine.tp": [4], "engine.max_seqs": [64],
    "engine.max_batched_tokens": [4096], "engine.max_len": [4096], "engine.eager": [True],
    "engine.sleep": ["none", "2"], "engine.sync_bucket_bytes": [512 << 20], "engine.quant": ["fp8"],
}  # fmt: skip
SWITCHED = {"logprob.token_budget", "reference.logprob.token_budget", "lora.targets"}
"""Paths that mean something only beside another edit."""


def test_every_native_path_is_tried_below():
    assert set(EDITS) == {path for path in NATIVE if not path.startswith("critic.")} - SWITCHED


@pytest.mark.parametrize(("path", "value"), [(path, value) for path, values in EDITS.items() for value in values])
def test_native_keys_read_back(path: str, value: Any):
    native = native_keys("verl==0.9.1", {path: value})
    assert native
    assert said(*(f"{key}={value}" for key, value in native.items()))[path] == value


def test_what_verl_cannot_say():
    edits = {"gpus": 12, "engine.sync_bucket_bytes": 100, "quant.kind": "nf4", "recompute": "selective"}
    assert native_keys("verl", edits) == {}


def test_the_example_is_read_whole():
    understood = read_config(str(HERE.parent.parent / "examples" / "verl_grpo.sh"))
    assert (understood.unread, understood.warnings, understood.missing) == ([], [], [])
    values = complete(understood)
    wanted = {
        "algorithm": "grpo", "model": "Qwen/Qwen2.5-7B", "gpus": 8, "engine.kind": "vllm", "group": 8,
        "prompts_per_step": 256, "prompt_len": 1024, "response_len": 2048, "seq_len": 3072, "mini_batch": 64,
        "micro_batch": 4, "logprob.micro_batch": 8, "reference.logprob.micro_batch": 8, "engine.fraction": 0.5,
        "engine.tp": 2, "reference.kind": "copy", "reference.offload.weights": "cpu", "reward.kind": "rules",
    }  # fmt: skip
    assert {path: values[path] for path in wanted} == wanted
