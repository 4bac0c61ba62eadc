"""Job files: job → file → job is the identity in every format, and mistakes come all at once with their lines."""

import io
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.errors import Refused
from vramcast.readers import read_config
from vramcast.readers.native import Format, write_job
from vramcast.types.job import Job
from vramcast.types.paths import PATHS
from vramcast.types.paths import Path as JobPath
from vramcast.types.settings import ROLES

FORMATS: tuple[Format, ...] = ("toml", "yaml", "json")


def read_back(job: Job, format: Format) -> Job:
    return read_config("-", io.StringIO(write_job(job, format))).job()


# A text that reads as "unset", or that has blanks around it, is not a value that a command line could give either.
texts = st.text(min_size=1, max_size=12).filter(
    lambda text: text.strip() == text and text.lower() not in ("null", "none", "~")
)


def values(path: JobPath) -> st.SearchStrategy[Any]:
    by_kind: dict[str, st.SearchStrategy[Any]] = {
        "count": st.integers(1, 10**6),
        "bytes": st.integers(0, 2**45),
        "fraction": st.floats(0, 1, exclude_min=True, exclude_max=True, allow_subnormal=False),
        "number": st.floats(1, 1e9),
        "flag": st.booleans(),
        "choice": st.sampled_from(path.choices) if path.choices else st.nothing(),
        "text": texts,
        "list": st.lists(texts, max_size=3),
        "table": st.dictionaries(texts, st.integers(1, 512), max_size=3),
    }
    plain = by_kind[path.kind]
    return st.none() | plain if path.optional else plain


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    chosen: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(PATHS)), min_size=1, max_size=12, unique=True)):
        path = PATHS[name]
        role = "" if path.job_wide else draw(st.sampled_from(("", *(f"{role}." for role in ROLES))))
        chosen[f"{role}{name}"] = draw(values(path))
    return Job(chosen)


@given(jobs())
def test_job_to_file_to_job_is_the_identity(job: Job):
    for format in FORMATS:
        assert read_back(job, format) == job, format


@pytest.mark.parametrize("format", FORMATS)
def test_values_that_formats_read_differently(format: Format):
    job = Job(
        {
            "model": 'a\tb"c\\d\x85\x7f\u2028\U0001f600',
            "optimizer": "adamw",
            "optimizer.impl": "foreach",
            "engine.sleep": "1",
            "framework": None,
            "host_bytes": 80 * 2**30 + 1,
            "engine.fraction": 1e-05,
            "trainable": "yes",
            "lengths": "012",
            "lora.rank_pattern": {"q_proj": 8, "a.b: c": 16},
            "critic.micro_batch": 2,
        }
    )
    back = read_back(job, format)
    assert back == job
    assert [type(value) for value in back.values.values()] == [type(value) for value in job.values.values()]
    assert math.isclose(back.values["engine.fraction"], 1e-05)  # type: ignore[arg-type]


def test_nested_tables_and_flat_paths_are_the_same(tmp_path: Path):
    texts = {
        "a.yaml": "tp: 2\nlora:\n  rank: 8\n  rank_pattern:\n    q_proj: 4\ncritic:\n  lora:\n    rank: 2\n",
        "b.toml": "tp = 2\n[lora]\nrank = 8\nrank_pattern = {q_proj = 4}\n[critic.lora]\nrank = 2\n",
        "c.json": '{"tp": 2, "lora.rank": 8, "lora.rank_pattern": {"q_proj": 4}, "critic.lora.rank": 2}',
    }
    expected = {"tp": 2, "lora.rank": 8, "lora.rank_pattern": {"q_proj": 4}, "critic.lora.rank": 2}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert read_config(str(tmp_path / name)).job().values == expected, name


def test_origins_have_lines_in_yaml(tmp_path: Path):
    (tmp_path / "job.yaml").write_text("# a job\ntp: 2\nlora:\n  rank: 8\n")
    origins = [str(fact.origin) for fact in read_config(str(tmp_path / "job.yaml")).facts]
    assert origins == ["job.yaml:2  tp", "job.yaml:4  lora.rank"]


def test_all_mistakes_at_once(tmp_path: Path):
    (tmp_path / "job.yaml").write_text("tp: 0\nmicro_bach: 4\nhost_bytes: 80\nseq_len: 4k\nlora:\n  rank: x\n")
    with pytest.raises(Refused) as refused:
        read_config(str(tmp_path / "job.yaml"))
    facts = [mistake.fact for mistake in refused.value.mistakes]
    assert facts[0] == "tp: must be >= 1, not 0"
    assert facts[1] == "unknown path 'micro_bach'"
    assert facts[2].startswith("host_bytes: 80 needs a unit")
    assert facts[3].startswith("lora.rank: 'x' is not a whole number")
    assert [mistake.context["from"].split()[0] for mistake in refused.value.mistakes] == [
        "job.yaml:1",
        "job.yaml:2",
        "job.yaml:3",
        "job.yaml:6",
    ]
