"""verl: hydra's overrides, OmegaConf's interpolations, and what the keys mean; in scripts, lists and YAML."""

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest

from vramcast.catalog.frameworks import defaults, framework, parse_framework
from vramcast.errors import Refused
from vramcast.estimate import resolve
from vramcast.readers import native_keys, read_config
from vramcast.readers.frameworks.verl.defaults import RELEASES, default, has_key
from vramcast.readers.frameworks.verl.keys import CRITIC, KEYS, OLD, RULED
from vramcast.readers.frameworks.verl.limits import REFUSED
from vramcast.readers.frameworks.verl.native import NATIVE
from vramcast.readers.hydra import parse_value
from vramcast.types.job import Origin, Understanding, check_value
from vramcast.types.paths import find

HERE = Path(__file__).parent
SAMPLES = HERE / "samples" / "verl"
NAMES: dict[str, str] = tomllib.loads((HERE / "names.toml").read_text())["names"]
EXPECTED: dict[str, dict[str, Any]] = tomllib.loads((SAMPLES / "expected.toml").read_text())
NOT_YET = {"megatron.sh"}
A, R, M = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
F = "actor_rollout_ref.ref."
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
        ([f"{A}fsdp_config.fsdp_size=-1"], {"shard_size": None}),
        (["trainer.nnodes=2", f"{A}fsdp_config.fsdp_size=8"],
         {"gpus": 16, "shard_size": 8, "reference.shard_size": 16}),
        (["trainer.nnodes=2", f"{A}fsdp_config.fsdp_size=8", f"{F}fsdp_config.fsdp_size=4"],
         {"gpus": 16, "shard_size": 8, "reference.shard_size": 4}),
        ([f"{A}fsdp_config.fsdp_size=16"], {"shard_size": None}),
        ([f"{A}fsdp_config.offload_policy=True", f"{A}strategy=fsdp2", f"{A}fsdp_config.param_offload=False"],
         {"shard": "fsdp2", "offload.weights": "cpu", "offload.gradients": "cpu", "offload.optimizer": "cpu"}),
        ([f"{A}fsdp_config.offload_policy=True"], {}),
        ([f"{A}fsdp_config.dtype=float16"], {}),
        ([f"{A}fsdp_config.dtype=float16", "critic.model.fsdp_config.dtype=bfloat16"], {"compute_dtype": "fp16"}),
        ([f"{A}fsdp_config.dtype=float16", f"+{A}fsdp_config.mixed_precision.param_dtype=bf16"],
         {"compute_dtype": "bf16"}),
        ([f"{A}fsdp_config.ulysses_sequence_parallel_size=2"], {"ulysses": 2}),
        ([f"{A}fsdp_config.ulysses_sequence_parallel_size=2", f"{A}ulysses_sequence_parallel_size=4"], {"ulysses": 4}),
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
        ([f"{A}calculate_entropy=True", f"{A}entropy_from_logits_with_chunking=True"],
         {"entropy": "chunked", "logprob.entropy": "chunked"}),
        ([f"{A}entropy_from_logits_with_chunking=True", f"{A}entropy_from_logits_chunk_size=512"],
         {"logprob.entropy": "chunked", "logprob.chunk": 512}),
        ([f"{A}use_torch_compile=False"], {}),
        ([f"{A}fsdp_config.use_torch_compile=False"], {"logprob.entropy": "eager"}),
        ([f"{A}use_torch_compile=False", "critic.model.fsdp_config.param_offload=True"], {"logprob.entropy": "eager"}),
        ([f"{M}use_remove_padding=False", f"{A}fsdp_config.use_torch_compile=False"], {"padding": "max"}),
        (["algorithm.rollout_correction.bypass_mode=True"], {"logprob.source": "engine"}),
        (["algorithm.rollout_correction.bypass_mode=False"], {"logprob.source": "trainer"}),
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
        ([f"{M}use_remove_padding=16"], {"padding": "free"}),
        ([f"{M}use_remove_padding=0"], {"padding": "max"}),
        ([f"{M}enable_gradient_checkpointing=null"], {"recompute": "none"}),
        ([f"{A}fsdp_config.model_dtype=null", f"{F}fsdp_config.model_dtype=null"],
         {"weights_dtype": "fp32", "reference.weights_dtype": "bf16"}),
        ([f"+{M}override_config.attn_implementation=null"], {"attention": None}),
        ([f"{A}fsdp_config.wrap_policy.disable=True"], {"wrap": "none"}),
        ([f"+{R}engine_kwargs.vllm.kv_cache_dtype=fp8"], {"engine.kv_dtype": "fp8"}),
        ([f"+{A}optim.override_optimizer_config.fused=True"], {"optimizer.impl": "fused"}),
        ([f"+{A}optim.override_optimizer_config.foreach=False", f"{A}optim.optimizer=AdamW"],
         {"optimizer": "adamw", "optimizer.impl": "loop"}),
        ([f"{M}lora.rank=8"], {}),
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
    understood = read(COMMAND + "critic.fsdp.param_offload=True critic.optim.lr=1 critic.fsdp.fsdp_size=-1")
    assert [(idle.key, idle.value, idle.where, idle.why) for idle in understood.idle] == [
        ("critic.fsdp.param_offload", True, "stdin:1", "there is no critic"),
        ("critic.optim.lr", 1, "stdin:1", "there is no critic"),
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


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("--config-name my_trainer", "error: the defaults of my_trainer are not known"),
        ("actor@actor_rollout_ref.actor=lite_actor",
         "error: actor@actor_rollout_ref.actor = lite_actor: the keys that this choice sets are not known"),
        ("+model@x=lite", "error: model@x = lite: the keys that this choice sets are not known"),
        ("actor@actor_rollout_ref.actor=megatron_actor", "error: verl's Megatron backend is not modelled yet"),
        (f"{A}megatron.tensor_model_parallel_size=4", "error: verl's Megatron backend is not modelled yet"),
    ],
)  # fmt: skip
def test_another_tree_of_defaults_is_refused(override: str, error: str):
    with pytest.raises(Refused) as refused:
        read(COMMAND + override)
    assert str(refused.value).splitlines()[0] == error


def test_verls_own_trees_are_known():
    for tree in ("--config-name=ppo_trainer.yaml -cp dir", "actor@actor_rollout_ref.actor=dp_actor model_engine=dp"):
        understood = read(COMMAND + tree)
        assert (understood.warnings, understood.unread, understood.idle) == ([], [], [])


def test_tables_do_not_overlap():
    tables = [set(table) for table in (KEYS, CRITIC, OLD, REFUSED)]
    assert sum(map(len, tables)) == len(set().union(*tables))
    assert set(KEYS) & set(RULED) == {"trainer.n_gpus_per_node"}
    assert not {*KEYS, *RULED, *CRITIC} & set(REFUSED)
    assert all(new in (*KEYS, *RULED, *CRITIC, *REFUSED) or new == "critic.fsdp.fsdp_size" for new in OLD.values())


def test_every_path_of_the_tables_exists():
    paths = [path for path, _ in [*KEYS.values(), *CRITIC.values()]] + [path for fed in RULED.values() for path in fed]
    for path in (*paths, *NATIVE, *(row.path for row in framework("verl").defaults)):
        find(path)


@pytest.mark.parametrize("version", RELEASES)
def test_the_defaults_of_the_catalogue_are_verls(version: str):
    """Rows that one key decides by itself, in every release that was read."""
    rows = {fact.path: fact.value for fact in defaults("verl", version, "grpo", {})}
    for key, (path, convert) in KEYS.items():
        value = default(key, version)
        if path in rows and has_key(key, version) and value not in (None, "???") and path != "model":
            assert check_value(path, convert(value), Origin("")) == rows[path], key


def test_defaults_by_version():
    def at(version: str, path: str) -> Any:
        return next(fact.value for fact in defaults("verl", version, "grpo", {}) if fact.path == path)

    assert [at(version, "padding") for version in ("0.6.1", "0.7.0")] == ["max", "free"]
    assert [at(version, "engine.eager") for version in ("0.5.0", "0.6.0")] == [True, False]
    assert [at(version, "engine.process") for version in ("0.6.0", "0.9.1")] == ["trainer", "own"]
    assert [at(version, "reference.weights_dtype") for version in ("0.5.0", "0.9.1")] == ["bf16", "fp32"]
    assert [at(version, "engine.sync_bucket_bytes") for version in ("0.6.0", "0.9.1")] == [512 << 20, 2 << 30]
    assert [at(version, "engine.max_seqs") for version in ("0.8.0", "0.9.0")] == [1024, 256]
    assert [at(version, "entropy") for version in ("0.3.0", "0.4.0")] == ["grad", "none"]


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


@pytest.mark.parametrize(
    ("override", "does"),
    [
        ("actor_rollout_ref.hybrid_engine=False", "puts the engine on GPUs of its own"),
        ("+rollout.n_gpus_per_node=2", "puts the engine on GPUs of its own"),
        (f"{R}nnodes=1", "puts the engine on GPUs of its own"),
        (f"{M}lora_adapter_path=adapters", "loads adapters whose rank and layers stand in other files"),
        ("distillation.enabled=True", "adds a teacher"),
        ("trainer.device=npu", "runs on a device that is no CUDA GPU"),
        ("trainer.v1.trainer_mode=separate_async", "generates and trains at the same time"),
        (f"{A}use_prefix_grouper=True", "computes the prompt of a group once"),
        (f"{A}fsdp_config.mixed_precision.reduce_dtype=bf16", "reduces gradients in another dtype than fp32"),
        (f"{F}ulysses_sequence_parallel_size=2", "cuts the reference's sequences another way than the actor's"),
        (f"{F}strategy=fsdp2", "runs the reference under another sharding than the actor"),
        (f"{F}model.path=org/other", "makes the reference another model"),
        (f"+{M}override_config.num_hidden_layers=4", "makes another model than its config.json"),
        (f"+{M}override_config.attention_dropout=0.1", "keeps a mask for every dropout"),
        (f"{M}use_fused_kernels=True {M}fused_kernel_options.impl_backend=triton",
         "makes the fused head with Triton's kernels"),
        (f"{A}entropy_coeff=0.1 {A}entropy_checkpointing=True", "computes the entropy again in backward"),
        (f"{R}prompt_length=100", "differs from data.max_prompt_length: it is not known which of them counts"),
    ],
)  # fmt: skip
def test_a_key_that_makes_another_job_is_refused(override: str, does: str):
    with pytest.raises(Refused) as refused:
        read(COMMAND + override)
    key, _, value = override.split()[-1].lstrip("+").partition("=")
    assert str(refused.value) == f"error: {key} = {value} is not modelled yet: it {does}\n  from  stdin:1"


def test_one_cause_is_said_once():
    with pytest.raises(Refused) as refused:
        read(COMMAND + f"actor_rollout_ref.hybrid_engine=False +rollout.nnodes=1 rollout.n_gpus_per_node=2 {R}nnodes=1")
    assert len(refused.value.mistakes) == 1


def test_a_critic_is_refused_once():
    with pytest.raises(Refused) as refused:
        resolve(
            read(f"python -m verl.trainer.main_ppo {M}path=Qwen/Qwen2.5-7B critic.model.path=x critic.strategy=fsdp2 "
                 "critic.ppo_micro_batch_size_per_gpu=4 reward.reward_model.enable=True")
        )  # fmt: skip
    assert [str(mistake).splitlines()[0] for mistake in refused.value.mistakes] == [
        "error: algorithm = ppo is not modelled yet"
    ]


def test_an_unknown_value_of_a_key_that_may_make_another_job():
    with pytest.raises(Refused, match=r"trainer\.device is not known: \$DEVICE is not set in the script"):
        read(COMMAND + "trainer.device=$DEVICE")


def test_a_text_in_place_of_a_switch_is_true():
    understood = read(COMMAND + f"{M}use_remove_padding=no {A}use_kl_loss=no")
    assert understood.warnings == [
        f"stdin:1: {key} = 'no' is a text, which verl takes as true"
        for key in (f"{M}use_remove_padding", f"{A}use_kl_loss")
    ]
    assert (understood.job().values["padding"], understood.job().values["reference.kind"]) == ("free", "copy")
