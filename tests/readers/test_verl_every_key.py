"""Every key that a release of verl has, with every kind of value: it changes the job, or something is said of it."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import pytest

from vramcast.errors import Refused
from vramcast.readers.document import Document
from vramcast.readers.frameworks.verl.defaults import (
    NEWEST,
    RELEASES,
    default,
    has_key,
    is_default,
    keys_of,
    release_of,
)
from vramcast.readers.frameworks.verl.keys import ACTOR, CRITIC, KEYS, OLD, ROLLOUT, RULED
from vramcast.readers.frameworks.verl.limits import NO_EFFECT, REFUSED
from vramcast.readers.frameworks.verl.reader import read_verl_yaml
from vramcast.types.job import Understanding

KINDS: list[Any] = [True, False, 0, 1, 3, 0.5, None, "", "some text", [], ["a"], {}]
TABLES = sorted({*KEYS, *RULED, *CRITIC, *OLD, *REFUSED, *(key for keys in NO_EFFECT.values() for key in keys)})
EVERYTHING = os.environ.get("VRAMCAST_ALL_VALUES") == "1"
"""All releases, not the newest alone."""
ASKED = {"algorithm.adv_estimator": "grpo", f"{ROLLOUT}name": "vllm"}


def read(values: dict[str, Any]) -> Understanding:
    return read_verl_yaml(Document({**ASKED, **values}, {}), "job.yaml")


@cache
def nothing_said() -> Understanding:
    return read({})


def silent(key: str, value: Any, version: str = NEWEST) -> bool:
    """Whether a key with a value leaves no trace: no fact, no word, no mistake, and it is not what verl has itself."""
    if key in ASKED and value == ASKED[key]:
        return False
    try:
        with_key = read({key: value})
    except Refused as refused:
        return not any(key in str(mistake) for mistake in refused.mistakes)
    without = nothing_said()
    version = str(with_key.winners()["framework"].value).partition("==")[2]
    if is_default(key, value, {key: value}, version):
        return False
    said = [
        *(each.key for each in (*with_key.unread, *with_key.idle)),
        *(missing.where for missing in with_key.missing),
        *(line for line in with_key.warnings if line not in without.warnings),
    ]
    if any(key in text for text in said):
        return False
    facts = {fact.path: fact.value for fact in with_key.facts if key in str(fact.origin)}
    return not facts


@pytest.mark.parametrize("value", KINDS, ids=repr)
def test_no_key_of_the_tables_is_silent(value: Any) -> None:
    keys = [key for key in TABLES if not key.endswith((".", "_"))]
    assert [key for key in keys if silent(key, value)] == []


@pytest.mark.parametrize("value", [True, False, 7, None, "some text"] if EVERYTHING else [False, 7], ids=repr)
def test_no_key_of_any_release_is_silent(value: Any) -> None:
    versions = RELEASES if EVERYTHING else RELEASES[:1]
    assert [key for version in versions for key in keys_of(version) if silent(key, value, version)] == []


@pytest.mark.parametrize("version", RELEASES)
def test_a_dump_of_verls_own_defaults_says_nothing(version: str) -> None:
    """`--cfg job` prints all of them: none is unread, none without effect, and they change nothing."""
    dump = {key: default(key, version) for key in keys_of(version)}
    dump |= {**ASKED, f"{ACTOR}ppo_micro_batch_size_per_gpu": 1}
    assert release_of(dump) == version
    understood = read(dump)
    assert (understood.unread, understood.warnings, understood.missing) == ([], [], [])
    assert [each.key for each in understood.idle] == []
    assert understood.winners()["framework"].value == f"verl=={version}"


def test_which_release_has_the_keys() -> None:
    assert release_of([]) == NEWEST
    assert release_of(["no.such.key"]) == NEWEST
    assert release_of(["critic.model.fsdp_config.param_offload"]) == "0.7.1"
    assert release_of(["critic.model.fsdp_config.param_offload", f"{ACTOR}calculate_sum_pi_squared"]) == "0.7.1"
    assert release_of([f"{ACTOR}fsdp_config.grad_offload"]) == "0.2.0"
    assert default(f"{ACTOR}entropy_coeff", "0.3.0") == 0.001
    assert default("critic.fsdp.model_dtype", "0.3.0") == "fp32"  # a key that came later
    assert not has_key("critic.fsdp.model_dtype", "0.3.0")


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        (f"{ROLLOUT}max_num_seqs", 256, True), (f"{ROLLOUT}max_num_seqs", 1024, False),
        (f"{ACTOR}use_kl_loss", False, True), (f"{ACTOR}use_kl_loss", 0, True), (f"{ACTOR}use_kl_loss", 1, False),
        (f"{ACTOR}entropy_coeff", 0.0, True),
        (f"{ROLLOUT}n_gpus_per_node", 8, True), (f"{ROLLOUT}n_gpus_per_node", 4, False), ("no.such.key", None, False),
    ],
)  # fmt: skip
def test_what_is_verls_own_value(key: str, value: Any, same: bool) -> None:
    assert is_default(key, value, {}, NEWEST) == same


def test_a_default_that_stands_for_another_key_follows_it() -> None:
    key = "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"
    values = {f"{ACTOR}ppo_max_token_len_per_gpu": 9000}
    assert is_default(key, 9000, values, NEWEST)
    assert not is_default(key, 16384, values, NEWEST)
