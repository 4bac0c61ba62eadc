"""A job: the identity through a file, all mistakes at once, and what one role sees of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.errors import Refused
from vramcast.types.job import Fact, Job, Origin, Understanding, Unread, flatten, settings_of
from vramcast.types.paths import PATHS, Path, Value
from vramcast.types.settings import ROLES, Settings

words = st.text("abz_/.-09", min_size=1)


def values_of(path: Path) -> st.SearchStrategy[Value]:
    exact: dict[str, st.SearchStrategy[Any]] = {
        "count": st.integers(1, 1 << 20),
        "bytes": st.integers(0, (1 << 63) - 1),
        "fraction": st.floats(0.001, 0.999),
        "number": st.floats(1, 1e6),
        "flag": st.booleans(),
        "choice": st.sampled_from(path.choices or ("",)),
        "text": words,
        "list": st.lists(words, max_size=4),
        "table": st.dictionaries(st.text(min_size=1), st.integers(1, 1 << 20), max_size=4),
    }
    return st.none() | exact[path.kind] if path.optional else exact[path.kind]


def _entries(path: Path) -> st.SearchStrategy[tuple[str, Value]]:
    owners = ("",) if path.job_wide else ("", *(f"{role}." for role in ROLES))
    return st.tuples(st.sampled_from([owner + path.name for owner in owners]), values_of(path))


jobs = st.lists(st.sampled_from(list(PATHS.values())).flatmap(_entries)).map(lambda entries: Job(dict(entries)))


@given(jobs)
def test_job_to_file_to_job_is_the_identity(job: Job) -> None:
    assert Job.of(job.to_file()) == job


@given(jobs)
def test_every_job_has_settings_for_every_role(job: Job) -> None:
    for role in ROLES:
        seen = settings_of(job.values, role)
        for name, path in PATHS.items():
            own, shared = job.values.get(f"{role}.{name}"), job.values.get(name, path.default)
            expected = own if f"{role}.{name}" in job.values else shared
            assert getattr(seen, path.attribute) == expected


def test_bytes_are_written_with_their_unit() -> None:
    assert Job({"host_bytes": 2 << 40, "critic.buckets": 1000}).to_file() == {
        "host_bytes": "2TiB",
        "critic.buckets": "1000B",
    }


def test_nested_tables_are_dotted_paths() -> None:
    content = {
        "model": "org/model",
        "lora": {"rank": 8, "rank_pattern": {"q_proj": 4}},
        "critic": {"kind": "model", "lora": {"rank_pattern": {"a.b": 2}}, "micro_batch": 2},
        "engine.kind": "vllm",
    }
    assert list(flatten(content)) == [
        ("model", "org/model"),
        ("lora.rank", 8),
        ("lora.rank_pattern", {"q_proj": 4}),
        ("critic.kind", "model"),
        ("critic.lora.rank_pattern", {"a.b": 2}),
        ("critic.micro_batch", 2),
        ("engine.kind", "vllm"),
    ]
    assert Job.of(content).values["critic.lora.rank_pattern"] == {"a.b": 2}


MISTAKES = """\
error: unknown path 'seq_length'
  near  seq_len, lengths, response_len
  help  `vramcast list paths` shows every path
  from  job file
error: tuning: 'loar' is not one of: full, lora, qlora, frozen
  from     job file
  allowed  full, lora, qlora, frozen
error: micro_batch: must be >= 1, not 0
  from     job file
  allowed  a whole number such as 4096 or 4k
error: host_bytes: 80 needs a unit: a size with its unit, such as 80GiB, or null
  from     job file
  allowed  a size with its unit, such as 80GiB, or null
error: lora.rank is set twice
  from  job file"""


def test_all_mistakes_of_a_job_at_once() -> None:
    content = {
        "seq_length": 1, "tuning": "loar", "micro_batch": 0, "host_bytes": 80, "lora.rank": 8, "lora": {"rank": 16},
    }  # fmt: skip
    with pytest.raises(Refused) as caught:
        Job.of(content)
    assert str(caught.value) == MISTAKES


def test_a_role_sees_its_own_values_then_the_policy_s_then_the_defaults() -> None:
    values: dict[str, Value] = {"micro_batch": 4, "critic.micro_batch": 2, "policy.seq_len": 8192, "gpus": 8}
    assert settings_of(values) == Settings(micro_batch=4, seq_len=8192, gpus=8)
    assert settings_of(values, "critic") == Settings(micro_batch=2, gpus=8)
    assert settings_of(values, "reference") == Settings(micro_batch=4, gpus=8)


def test_the_first_said_counts_and_overrides_are_known() -> None:
    flag, line = Origin("--set"), Origin("sft.yaml:3", "max_length")
    flags = Understanding([Fact("seq_len", 4096, flag)], warnings=["w1"])
    config = Understanding(
        [Fact("seq_len", 2048, line), Fact("packing", True, Origin("sft.yaml:4", "packing"))],
        [Unread("foo", "sft.yaml:5")],
        ["w2"],
    )
    both = flags + config
    assert both.job() == Job({"seq_len": 4096, "packing": True})
    assert both.overridden() == [(Fact("seq_len", 2048, line), Fact("seq_len", 4096, flag))]
    assert both.unread == [Unread("foo", "sft.yaml:5")]
    assert both.warnings == ["w1", "w2"]
    assert str(line) == "sft.yaml:3  max_length"
    assert str(flag) == "--set"
