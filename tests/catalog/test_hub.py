"""Models of the Hub: from this machine's cache, and with --hub into it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.cases import run

from vramcast.catalog.hub import cached_config
from vramcast.catalog.models import model_config

CONFIG: dict[str, Any] = {**model_config("Qwen/Qwen2.5-7B").config, "num_hidden_layers": 3}
NAME = "someone/new-model"
ASK = f"check --model {NAME} --set algorithm=inference --gpu l4"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def put(cache: Path, revision: str, config: dict[str, Any], *, main: bool = False) -> Path:
    folder = cache / "models--someone--new-model"
    file = folder / "snapshots" / revision / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(config), encoding="utf-8")
    if main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(revision, encoding="utf-8")
    return file


def test_a_model_of_the_cache_is_found(cache: Path) -> None:
    """Of two revisions the one that main points to."""
    wanted = put(cache, "aaa", CONFIG, main=True)
    put(cache, "bbb", {**CONFIG, "num_hidden_layers": 4})
    assert cached_config(NAME) == str(wanted)
    assert model_config(NAME).config["num_hidden_layers"] == 3
    assert run(ASK).exit == 0


def test_without_a_reference_any_revision_is_taken(cache: Path) -> None:
    wanted = put(cache, "aaa", CONFIG)
    assert cached_config(NAME) == str(wanted)


def test_the_catalogue_comes_first(cache: Path) -> None:
    file = cache / "models--Qwen--Qwen2.5-7B" / "snapshots" / "x" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}", encoding="utf-8")
    assert model_config("Qwen/Qwen2.5-7B").params


@pytest.mark.parametrize("name", ["someone/other", "no-owner", "../models--someone/new-model", "a/b/c", ""])
def test_other_names_are_not_found(cache: Path, name: str) -> None:
    put(cache, "aaa", CONFIG)
    assert cached_config(name) is None


def test_hub_fetches_what_is_not_known(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str]] = []

    def download(name: str, file: str, *, cache_dir: str) -> None:
        asked.append((name, file, cache_dir))
        put(cache, "aaa", CONFIG, main=True)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    assert run(f"{ASK} --hub").exit == 0
    assert asked == [(NAME, "config.json", str(cache))]
    assert run(f"{ASK} --hub").exit == 0
    assert run("check --model Qwen/Qwen2.5-7B --set algorithm=inference --gpu l4 --hub").exit in (0, 1)
    assert len(asked) == 1, "what is known is not fetched"


def test_the_hub_says_no(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, file: str, *, cache_dir: str) -> None:
        raise OSError("404 Client Error.\nmore")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    found = run(f"{ASK} --hub")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.splitlines() == [
        f"error: the Hub gives no config.json of '{NAME}'",
        "  reason  404 Client Error.",
        "  from    --hub",
    ]


def test_without_the_library(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    found = run(f"{ASK} --hub")
    assert found.stderr == "error: --hub needs huggingface_hub\n  help  pip install 'vramcast[hub]'\n"
    assert found.exit == 2
