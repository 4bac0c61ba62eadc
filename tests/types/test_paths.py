"""The public names: every one exists, is typed and says what it means; values are read strictly."""

import pytest

from vramcast.errors import Refused
from vramcast.types.job import Origin, check_value
from vramcast.types.paths import PATHS, Path, find, read_value, write_value
from vramcast.types.settings import ROLES, Settings

NAMES = """
algorithm grpo.variant framework model tuning trainable
weights_dtype compute_dtype grad_dtype master_dtype state_dtype autocast
quant.kind quant.double quant.storage quant.bits quant.group quant.compute_dtype quant.rest_dtype
optimizer optimizer.impl
lora.rank lora.targets lora.dtype lora.dropout lora.dora lora.rank_pattern lora.save_modules
micro_batch accumulation seq_len prompt_len response_len token_budget packing padding labelled_frac image_tokens
group prompts_per_step mini_batch logprob.micro_batch logprob.token_budget eval.micro_batch lengths
logprob.source logprob.entropy logprob.chunk
attention recompute recompute.every recompute.reentrant loss loss.chunk entropy fused_kernels compile
offload.weights offload.gradients offload.optimizer offload.activations
tp sp pp vpp schedule cp ulysses ep etp shard shard_size replicas reshard wrap buckets moe.imbalance
reference.kind reward.kind critic.kind teacher.kind
engine.kind engine.version engine.process engine.fraction engine.kv_bytes engine.tp engine.pp engine.dp engine.ep
engine.dtype engine.quant engine.kv_dtype engine.max_seqs engine.max_batched_tokens engine.max_len engine.eager
engine.sleep engine.cache engine.lora_slots engine.count engine.sync_bucket_bytes
gpu gpus gpus_per_node host_bytes busy_bytes allocator
""".split()

CHOICES = {
    "algorithm": "inference pretrain sft reward dpo kto orpo simpo cpo ppo grpo distill",
    "grpo.variant": "grpo dapo gspo dr_grpo rloo reinforce_pp",
    "tuning": "full lora qlora frozen",
    "quant.kind": "none int8 nf4 fp4 gptq awq fp8 fp8_block mxfp4 nvfp4 torchao hqq",
    "optimizer.impl": "fused foreach loop",
    "padding": "longest max free",
    "attention": "eager math efficient flash cudnn",
    "recompute": "none selective full offloaded",
    "loss": "full fp32 chunked fused compiled vocab_parallel",
    "entropy": "none forward grad chunked",
    "logprob.source": "trainer engine",
    "logprob.entropy": "none compiled eager chunked",
    "fused_kernels": "none liger unsloth",
    "offload.weights": "none cpu nvme",
    "offload.gradients": "none cpu nvme",
    "offload.optimizer": "none cpu nvme",
    "offload.activations": "none cpu nvme",
    "schedule": "none gpipe 1f1b interleaved",
    "shard": "none zero1 zero2 zero3 fsdp1 fsdp2",
    "wrap": "none block size",
    "reference.kind": "none copy adapter_off swapped precomputed",
    "reward.kind": "none rules model remote",
    "critic.kind": "none model",
    "teacher.kind": "none model remote",
    "engine.kind": "none hf vllm sglang trtllm",
    "engine.process": "trainer own server",
    "engine.sleep": "none 1 2",
    "engine.cache": "dynamic static offloaded quantised",
    "engine.kv_dtype": "fp32 bf16 fp16 fp8 int8 int4 nvfp4 mxfp8 fp4_e2m1 fp8_ds_mla nvfp4_ds_mla "
    "int8_per_token_head fp8_per_token_head int4_per_token_head",
}

ENGINE = [name for name in NAMES if name.startswith("engine.")]
JOB_WIDE = """
algorithm grpo.variant framework group prompts_per_step image_tokens lengths reference.kind reward.kind critic.kind
teacher.kind logprob.source logprob.entropy logprob.chunk gpu gpus gpus_per_node host_bytes busy_bytes allocator
""".split()


def test_the_public_names_are_these() -> None:
    assert sorted(PATHS) == sorted(NAMES)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_path_is_typed_and_documented(path: Path) -> None:
    assert len(path.about) > 8
    assert path.allowed
    assert getattr(Settings(), path.attribute) == path.default
    assert path.default is None or read_value(path, write_value(path, path.default)) == path.default


def test_defaults_may_be_null_only_where_null_is_allowed() -> None:
    assert [name for name, path in PATHS.items() if path.default is None and not path.optional] == []


@pytest.mark.parametrize(("name", "words"), CHOICES.items())
def test_enumerations_are_closed(name: str, words: str) -> None:
    assert PATHS[name].choices == tuple(words.split())
    with pytest.raises(ValueError, match="'other' is not one of: "):
        read_value(PATHS[name], "other")


def test_every_other_enumeration_is_a_dtype_a_quantisation_or_an_optimizer() -> None:
    rest = {name for name, path in PATHS.items() if path.kind == "choice"} - set(CHOICES)
    dtypes = {name for name in NAMES if name.endswith(("dtype", ".storage"))} - set(CHOICES)
    assert rest == dtypes | {"optimizer", "engine.quant"}
    assert PATHS["engine.quant"].choices == PATHS["quant.kind"].choices


def test_roles() -> None:
    assert ROLES == ("policy", "reference", "reward", "critic", "teacher", "rollout")
    assert sorted(name for name, path in PATHS.items() if path.job_wide) == sorted(JOB_WIDE + ENGINE)
    for role in ROLES:
        for name in set(NAMES) - set(JOB_WIDE + ENGINE):
            assert find(f"{role}.{name}") == (role, PATHS[name])
    assert find("critic.kind") == ("", PATHS["critic.kind"])


REFUSED = {
    "microbatch": """\
error: unknown path 'microbatch'
  near  micro_batch, eval.micro_batch, mini_batch
  help  `vramcast list paths` shows every path
  from  --set""",
    "critic.microbatch": """\
error: unknown path 'critic.microbatch'
  near  micro_batch, eval.micro_batch, mini_batch
  help  `vramcast list paths` shows every path
  from  --set""",
    "xyzzy": """\
error: unknown path 'xyzzy'
  help  `vramcast list paths` shows every path
  from  --set""",
    "critic.gpu": """\
error: critic.gpu cannot differ by role
  use   gpu
  from  --set""",
    "groups.rollout.gpus": """\
error: groups.rollout.gpus: placing roles on groups of their own is not modelled yet
  from  --set""",
}


@pytest.mark.parametrize(("name", "text"), REFUSED.items(), ids=REFUSED)
def test_a_name_that_is_refused(name: str, text: str) -> None:
    with pytest.raises(Refused) as caught:
        check_value(name, "1", Origin("--set"))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("seq_len", "4k", 4096), ("seq_len", 4096, 4096), ("micro_batch", "8", 8),
        ("busy_bytes", "2GiB", 2 << 30), ("host_bytes", "0B", 0), ("host_bytes", "null", None),
        ("engine.fraction", "0.45", 0.45), ("engine.fraction", 1, 1.0), ("moe.imbalance", "1.5", 1.5),
        ("packing", "true", True), ("packing", "Yes", True), ("packing", "0", False), ("packing", False, False),
        ("tuning", " lora ", "lora"), ("engine.sleep", 1, "1"), ("engine.sleep", "none", "none"),
        ("grad_dtype", "none", None), ("grad_dtype", None, None), ("offload.weights", "none", "none"),
        ("lora.targets", "q_proj, v_proj", ["q_proj", "v_proj"]), ("lora.targets", ["q_proj"], ["q_proj"]),
        ("lora.rank_pattern", "q_proj=8,v_proj=16", {"q_proj": 8, "v_proj": 16}), ("model", "org/model", "org/model"),
    ],
)  # fmt: skip
def test_a_value_is_read(name: str, written: object, value: object) -> None:
    read = read_value(PATHS[name], written)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "written", "reason"),
    [
        ("seq_len", "0", "must be >= 1, not 0"), ("seq_len", -4, "must be >= 1, not -4"),
        ("image_tokens", "-1", "must be >= 0, not -1"), ("busy_bytes", "-1B", "must be >= 0, not -1"),
        ("seq_len", "4.5", "'4.5' is not a whole number"), ("seq_len", 4096.0, "4096.0 is not a whole number"),
        ("seq_len", True, "true is not a whole number"), ("seq_len", None, "None is not a whole number"),
        ("seq_len", 1 << 63, "too large"), ("seq_len", "9" * 50, "too large"),
        ("host_bytes", "80", "'80' needs a unit"), ("host_bytes", 80, "80 needs a unit"),
        ("engine.fraction", "0", "must be > 0.0, not 0.0"), ("engine.fraction", 1.5, "must be <= 1.0, not 1.5"),
        ("engine.fraction", "half", "'half' is not a decimal fraction"), ("engine.fraction", "nan", "nan is not a"),
        ("moe.imbalance", 0.5, "must be >= 1.0, not 0.5"), ("moe.imbalance", "inf", "too large"),
        ("moe.imbalance", 10**400, "too large"), ("lora.dropout", 1, "must be < 1.0, not 1.0"),
        ("packing", "maybe", "'maybe' is not true or false"), ("packing", 1, "1 is not true or false"),
        ("fused_kernels", False, "False is not one of: none, liger"), ("loss", None, "None is not one of: full, fp32"),
        ("engine.version", 0.33, "0.33 is not text"), ("lora.targets", [1], "[1] is not names separated by commas"),
        ("lora.rank_pattern", "q_proj", "'q_proj' is not name=number pairs"),
        ("lora.rank_pattern", {"q_proj": 0}, "must be >= 1, not {'q_proj': 0}"),
        ("lora.rank_pattern", "q_proj=x", "'x' is not a whole number"),
    ],
)  # fmt: skip
def test_a_value_is_refused(name: str, written: object, reason: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        read_value(PATHS[name], written)
    assert reason in str(caught.value)


def test_dtypes_are_the_same_everywhere() -> None:
    names = [name for name in NAMES if name.endswith(("dtype", ".storage")) and name not in CHOICES]
    assert {PATHS[name].choices for name in names} == {("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4")}
