"""Models: one line of the catalogue is found by its name without parsing the others, and a user's file is read."""

import json
from pathlib import Path

import pytest

from vramcast.catalog import models
from vramcast.catalog.models import model_config, model_names
from vramcast.errors import Refused


def test_every_line_is_found_by_its_name():
    names = model_names()
    assert len(names) == len(set(names)) >= 8
    for name in names:
        row = model_config(name)
        assert row.id == name
        assert row.params or row.reason or row.published
        assert row.config["model_type"]
        assert row.source
    with open(models.__file__.replace("models.py", "models.jsonl"), "rb") as file:
        assert len(file.read().splitlines()) == len(names), "each line must begin with its id"


def test_exact_parameters():
    assert model_config("Qwen/Qwen2.5-7B").params == 7615616512
    assert model_config("meta-llama/Llama-3.1-8B").params == 8030261248


@pytest.mark.parametrize("name", ["qwen/qwen2.5-7b", "Qwen2.5-7B", "QWEN2.5-7B", " Qwen/Qwen2.5-7B "])
def test_case_and_owner_do_not_matter(name: str):
    assert model_config(name).id == "Qwen/Qwen2.5-7B"


def test_the_other_lines_are_not_parsed(monkeypatch: pytest.MonkeyPatch):
    text = b'{"id":"a/broken", not json\n{"id":"b/fine","params":1,"config":{},"source":"s"}\n'
    monkeypatch.setattr(models, "_catalogue", lambda: text)
    assert model_config("fine").params == 1


def test_ambiguous_name_lists_the_owners(monkeypatch: pytest.MonkeyPatch):
    line = '{"id":"%s/same","params":1,"config":{},"source":"s"}\n'
    monkeypatch.setattr(models, "_catalogue", lambda: (line % "a" + line % "b").encode())
    with pytest.raises(Refused) as refused:
        model_config("same")
    assert str(refused.value) == "error: model 'same' is ambiguous\n  one of  a/same, b/same"


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7", "qwen", "", "Qwen.2.5-7B", 'x"y', "a\0b", "(", "Qwen/.*"])
def test_unknown_name(name: str):
    with pytest.raises(Refused, match="error: unknown model") as refused:
        model_config(name)
    assert "config.json" in refused.value.mistakes[0].context["help"]


def test_unknown_name_offers_near_ones():
    with pytest.raises(Refused, match=r"near .*Qwen/Qwen2\.5-7B"):
        model_config("Qwen/Qwen2.5-8B")


def test_config_file_and_folder(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    for name in (str(file), str(tmp_path)):
        row = model_config(name)
        assert (row.id, row.params, row.source) == (name, None, str(file))
        assert row.config["hidden_size"] == 8


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "is empty"),
        (b"\0\1", "is binary"),
        (b"[1]", "its top level is not an object"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b" " * 2_000_001, "is larger than 2 MB"),
    ],
)
def test_bad_config_file(tmp_path: Path, content: bytes, error: str):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(Refused, match=error):
        model_config(str(file))


def test_missing_file_and_folder_without_config(tmp_path: Path):
    with pytest.raises(Refused, match=r"no such file: nowhere/config\.json"):
        model_config("nowhere/config.json")
    with pytest.raises(Refused, match=r"holds no config\.json"):
        model_config(str(tmp_path))
