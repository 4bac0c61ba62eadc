"""The examples stay what a user can start from."""

import tomllib
from pathlib import Path

from vramcast.types.job import Job

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_native_job_file_is_read() -> None:
    job = Job.of(tomllib.loads((EXAMPLES / "job.toml").read_text(encoding="utf-8")))
    assert job.values["optimizer.impl"] == "fused"
    assert job.values["busy_bytes"] == 512 << 20
