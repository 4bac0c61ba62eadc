"""A framework is one file in the tuple: what CONTRIBUTING shows is enough to read it and to answer in its keys."""

import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vramcast.errors import Refused
from vramcast.readers import frameworks, native_keys, read_config
from vramcast.readers.user_words import is_word, read_words
from vramcast.types.job import Origin

CONTRIBUTING = Path(__file__).parent.parent.parent / "CONTRIBUTING.md"


def added(file: str) -> str:
    """What the recipe adds to a file."""
    section = re.search(r"^### Add a framework\n(.*?)^### ", CONTRIBUTING.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert section
    (block,) = re.findall(rf"^```diff\n\+\+\+ \S*{file}\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)
    return "\n".join(line[1:] for line in block.splitlines() if line.startswith("+"))


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch):
    """The recipe, applied: its file is run, and its tuple takes the place of today's."""
    module = ModuleType("vramcast.readers.frameworks.toy")
    exec(added("frameworks/toy.py"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    changed: dict[str, Any] = {}
    exec(added("frameworks/__init__.py"), changed)
    monkeypatch.setattr(frameworks, "FRAMEWORKS", changed["FRAMEWORKS"])


def read(*lines: str) -> Any:
    return read_config("-", io.StringIO("\n".join(("toy_version: 1", *lines))))


def test_its_configuration_is_read():
    found = read("base: org/m", "seqs: 4", "precision: brain", "pack: true", "adapters: true", "rank: 8", "seed: 3")
    assert found.job().values == {
        "model": "org/m", "micro_batch": 4, "weights_dtype": "bf16", "packing": True, "tuning": "lora", "lora.rank": 8,
    }  # fmt: skip
    assert {str(fact.origin) for fact in found.facts if fact.path == "micro_batch"} == {"stdin:3  seqs"}
    assert {item.key for item in found.no_effect} == {"toy_version", "seed"}


def test_every_key_is_answered():
    found = read("rank: 8", "noise: 0", "pipeline: 1", "colour: red", "length:")
    assert [(item.key, item.why) for item in found.idle] == [
        ("rank", "only with adapters"),
        ("noise", "the default"),
        ("pipeline", "it chooses nothing"),
        ("length", "null: as if it were left out"),
    ]
    assert [item.key for item in found.unread] == ["colour"]


def test_mistakes_come_together():
    with pytest.raises(Refused) as refused:
        read("precision: double", "pack: 3", "pipeline: 2", "teacher_model: x")
    assert [mistake.fact.partition(":")[0] for mistake in refused.value.mistakes] == [
        "precision", "pack", "pipeline = 2 is not modelled yet", "teacher_model = x is not modelled yet",
    ]  # fmt: skip


def test_its_native_answer_is_in_its_keys():
    edits: dict[str, Any] = {"micro_batch": 2, "weights_dtype": "bf16", "tuning": "lora", "tp": 2}
    edits |= {"fused_kernels": "liger"}
    assert native_keys("toy==1", edits) == {"sequences": 2, "precision": "brain", "adapters": True, "kernels": True}
    assert native_keys("toy", {"weights_dtype": "fp32"}) == {}


def test_its_keys_may_be_set():
    assert is_word("sequences")
    told = read_words({"sequences": "2"}, {"sequences": Origin("--set", "sequences")})
    assert [(fact.path, fact.value) for fact in told.facts] == [("micro_batch", 2)]


def test_its_launch_scripts_are_read(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("toy_version: 1\nbase: org/m\nsequences: 8\n")
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc_per_node 4 -m toy.train --config a.yaml \\\n  --sequences 2 --length $LENGTH\n")
    found = read_config(str(script))
    assert [(fact.path, fact.value, str(fact.origin)) for fact in found.facts] == [
        ("model", "org/m", "a.yaml:2  base"),
        ("micro_batch", 2, "run.sh:2  sequences"),
        ("gpus", 4, "run.sh:1  nproc_per_node"),
    ]
    assert [item.path for item in found.missing] == ["seq_len"]
