"""Frameworks: rows are well formed, versions choose among them, and conditions win over the general rows."""

from typing import Any

import pytest

from vramcast.catalog.frameworks import defaults, framework_names, frameworks, parse_framework, recipe
from vramcast.errors import Refused
from vramcast.types.job import check_value
from vramcast.types.recipe import Recipe


def values_of(version: str, algorithm: str, **given: Any) -> dict[str, Any]:
    given = {path.replace("__", "."): value for path, value in given.items()}
    return {fact.path: fact.value for fact in defaults("trl", version, algorithm, given)}


def test_rows_name_paths_values_and_versions_that_exist():
    for framework in frameworks():
        for row in (*framework.defaults, *framework.modes):
            assert {row.since, row.until} - {""} <= set(framework.versions), row
            assert row.source, row
            for path, wanted in row.when.items():
                for value in wanted if isinstance(wanted, list) else [wanted]:
                    check_value(path, value, origin=None)  # type: ignore[arg-type]
        for row in framework.defaults:
            check_value(row.path, row.value, origin=None)  # type: ignore[arg-type]
        for mode in framework.modes:
            assert mode.mode in Recipe.__struct_fields__, mode
            assert type(mode.value) is type(getattr(Recipe(), mode.mode)), mode


def test_versions_are_newest_first():
    for framework in frameworks():
        numbers = [tuple(map(int, version.split("."))) for version in framework.versions]
        assert numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "grpo"])
def test_general_rows_of_one_path_never_overlap(algorithm: str):
    """Two rows without a condition that hold at once would make the answer depend on their order."""
    for framework in frameworks():
        for version in framework.versions:
            held = [
                row.path
                for row in framework.defaults
                if not row.when and algorithm in (row.algorithms or (algorithm,)) and holds(row, version)
            ]
            assert len(held) == len(set(held)), (framework.name, version, held)


def holds(row: Any, version: str) -> bool:
    def key(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(".")))

    return (not row.since or key(version) >= key(row.since)) and (not row.until or key(version) < key(row.until))


def test_sft_of_the_newest_trl():
    assert values_of("1.16.0", "sft") == {
        "weights_dtype": "fp32",
        "autocast": True,
        "compute_dtype": "bf16",
        "optimizer": "adamw",
        "optimizer.impl": "fused",
        "micro_batch": 8,
        "accumulation": 1,
        "seq_len": 1024,
        "packing": False,
        "padding": "longest",
        "recompute": "full",
        "recompute.reentrant": False,
        "attention": None,
        "fused_kernels": "none",
        "offload.activations": "none",
        "loss": "fused",
        "tuning": "full",
        "lora.rank": 16,
        "lora.targets": None,
        "lora.dropout": 0.05,
        "lora.dora": False,
        "lora.dtype": "fp32",
        "quant.double": False,
    }


@pytest.mark.parametrize(
    ("version", "path", "value"),
    [
        ("0.25.1", "weights_dtype", "fp32"),
        ("0.26.2", "weights_dtype", "bf16"),
        ("0.27.0", "weights_dtype", "fp32"),
        ("0.21.0", "recompute", "none"),
        ("0.22.0", "recompute", "full"),
        ("0.18.2", "autocast", False),
        ("0.19.0", "autocast", True),
        ("1.6.0", "loss", "full"),
        ("1.7.0", "loss", "chunked"),
        ("1.14.2", "loss", "chunked"),
        ("1.15.0", "loss", "fused"),
        ("1.15.0rc1", "loss", "chunked"),
    ],
)
def test_defaults_that_moved_in_sft(version: str, path: str, value: Any):
    assert values_of(version, "sft")[path] == value


@pytest.mark.parametrize(
    ("version", "path", "value"),
    [
        ("0.18.0", "reference.kind", "copy"),
        ("0.19.0", "reference.kind", "none"),
        ("1.9.2", "response_len", 256),
        ("1.10.0", "response_len", 512),
        ("0.15.0", "engine.fraction", 0.9),
        ("0.18.0", "engine.fraction", 0.3),
        ("0.29.0", "engine.process", "trainer"),
    ],
)
def test_defaults_that_moved_in_grpo(version: str, path: str, value: Any):
    assert values_of(version, "grpo")[path] == value


def test_vllm_ran_in_a_server_before_1_0():
    assert values_of("0.29.0", "grpo", engine__kind="vllm")["engine.process"] == "server"
    assert values_of("1.0.0", "grpo", engine__kind="vllm")["engine.process"] == "trainer"
    assert "engine.fraction" not in values_of("0.17.0", "grpo")


def test_conditions_win_over_general_rows():
    assert values_of("1.16.0", "sft", packing=True)["padding"] == "free"
    assert values_of("1.16.0", "sft", quant__kind="nf4")["lora.dtype"] == "bf16"
    assert values_of("1.16.0", "sft", autocast=False)["compute_dtype"] == "fp32"
    assert values_of("1.16.0", "sft", autocast=False, weights_dtype="bf16")["compute_dtype"] == "bf16"
    assert values_of("1.16.0", "dpo")["reference.kind"] == "copy"
    assert values_of("1.16.0", "dpo", tuning="lora")["reference.kind"] == "adapter_off"


def test_a_default_of_another_algorithm_is_not_given():
    assert "group" not in values_of("1.16.0", "sft")
    assert "packing" not in values_of("1.16.0", "dpo")


def test_origin_names_release_and_source():
    origins = {fact.path: str(fact.origin) for fact in defaults("trl", "1.16.0", "sft", {})}
    assert origins["weights_dtype"] == "trl 1.16.0 default (ModelConfig.dtype 'float32')"


def test_transformers():
    facts = {fact.path: fact.value for fact in defaults("transformers", "5.24.0", "inference", {})}
    assert facts["engine.kind"] == "hf"
    assert facts["weights_dtype"] == "bf16"
    assert "micro_batch" not in facts
    pretrain = {fact.path: fact.value for fact in defaults("transformers", "5.24.0", "pretrain", {})}
    assert (pretrain["loss"], pretrain["recompute"], pretrain["micro_batch"]) == ("full", "none", 8)
    old = {fact.path: fact.value for fact in defaults("transformers", "4.57.0", "inference", {})}
    assert old["weights_dtype"] == "fp32"


def test_recipe_of_trl():
    """Under mixed precision FSDP keeps what trains in fp32; TRL's own head works in tiles since 1.15."""
    fused = Recipe(
        outputs_fp32=True, upcasts_trainable=True, fused_head="tiles", tile_tokens=4096, tile_vocab=32768,
        device_map=True,
    )  # fmt: skip
    assert recipe("trl", "1.16.0", {"algorithm": "sft", "autocast": True}) == fused
    assert recipe("trl", "1.14.0", {"autocast": False}) == Recipe(device_map=True)
    sharded = {"autocast": True, "gpus": 8}
    assert recipe("trl", "1.14.0", {**sharded, "shard": "fsdp2"}) == Recipe(upcasts_trainable=True)
    assert recipe("trl", "1.14.0", {**sharded, "shard": "fsdp1"}) == Recipe(outputs_fp32=True, upcasts_trainable=True)


@pytest.mark.parametrize(
    ("version", "scores", "entropy"),
    [("0.14.0", "rows", ""), ("0.15.2", "plain", ""), ("0.19.1", "divided", ""), ("0.22.2", "divided", "sequence"),
     ("0.29.0", "divided", "rows"), ("1.9.2", "in_place", "rows"), ("1.13.0", "divided", "rows"),
     ("1.14.0", "kernel", "")],
)  # fmt: skip
def test_grpo_scores_tokens_by_version(version: str, scores: str, entropy: str):
    found = recipe("trl", version, {"algorithm": "grpo"})
    assert (found.scores, found.entropy, found.accuracy) == (scores, entropy, "")


@pytest.mark.parametrize(
    ("version", "accuracy", "entropy"),
    [("0.14.0", "", ""), ("0.21.0", "copy", ""), ("0.22.0", "copy", "sequence"), ("1.5.1", "copy", "rows"),
     ("1.6.0", "view", "rows"), ("1.14.0", "view", "")],
)  # fmt: skip
def test_sft_measures_logits_by_version(version: str, accuracy: str, entropy: str):
    found = recipe("trl", version, {"algorithm": "sft"})
    assert (found.accuracy, found.entropy, found.scores) == (accuracy, entropy, "")


def test_recipe_of_grpo_with_trl():
    """With vLLM, log-probabilities are recomputed since 0.23 and the engine runs what one step needs."""
    with_engine = {"algorithm": "grpo", "autocast": True, "engine.kind": "vllm"}
    assert recipe("trl", "1.16.0", with_engine) == Recipe(
        outputs_fp32=True, upcasts_trainable=True, fused_head="tiles", tile_tokens=4096, tile_vocab=32768,
        old_logprobs=True, engine_seqs_from_batch=True, device_map=True, scores="kernel",
        reference_unfrozen=True,
    )  # fmt: skip
    assert not recipe("trl", "0.22.0", with_engine).old_logprobs
    assert recipe("trl", "0.23.0", with_engine).old_logprobs
    assert not recipe("trl", "1.16.0", {**with_engine, "engine.kind": "hf"}).old_logprobs


def test_recipe_of_verl():
    given = {"algorithm": "grpo", "autocast": True, "engine.kind": "vllm", "shard": "fsdp1"}
    assert recipe("verl", "0.9.1", given) == Recipe(
        cross_entropy="flash", fsdp_alone=True, fused_head="chunks", tile_tokens=512, scores_prompt=True,
        old_logprobs=True, syncs_gradients=True, reduce_fp32=True, engine_len_from_job=True,
    )  # fmt: skip


def test_recipe_of_transformers():
    assert recipe("transformers", "5.24.0", {"algorithm": "inference", "autocast": True}) == Recipe()
    assert recipe("transformers", "5.24.0", {"algorithm": "pretrain", "autocast": True}).outputs_fp32


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("trl", ("trl", "1.16.0")),
        ("trl==1.16", ("trl", "1.16.0")),
        ("TRL == 1.16.0", ("trl", "1.16.0")),
        ("trl==1.14.1", ("trl", "1.14.1")),
        ("trl==1.15.0rc1", ("trl", "1.15.0rc1")),
        ("transformers", ("transformers", "5.24.0")),
    ],
)
def test_releases(text: str, release: tuple[str, str]):
    assert parse_framework(text) == (*release, "")


def test_unsure_releases_carry_a_warning():
    newer = parse_framework("trl==2.0")
    assert newer == ("trl", "2.0", "trl 2.0 is newer than 1.16.0, whose rows are used")
    assert defaults("trl", newer.version, "sft", {})
    assert "older than 0.12.2" in parse_framework("trl==0.7").warning


@pytest.mark.parametrize("text", ["tlr", "tlr==1.0", "", "trl>=1.0"])
def test_unknown_framework(text: str):
    with pytest.raises(Refused, match="error: unknown framework") as refused:
        parse_framework(text)
    assert refused.value.mistakes[0].context["known"] == ", ".join(framework_names())


def test_not_a_version():
    for text in ("trl==", "trl==abc", "trl==1..2", "trl==1.16.x"):
        with pytest.raises(Refused, match="is not a version"):
            parse_framework(text)
