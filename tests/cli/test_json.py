"""The JSON of the verbs: valid by its own schema, and with the keys that the design promises as schema 1."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.cli.cases import ANSWERS, answer

COMMANDS = [name for name, command in ANSWERS.items() if command.startswith("check") and "markdown" not in name]

# Schema 1 of `check`: the keys that are always there, level by level.
FORECAST = {
    "schema", "version", "predictions", "verdict", "job", "peak", "groups", "nodes", "assumptions", "unread", "ignored",
    "ineffective", "warnings", "levers",
}  # fmt: skip
PEAK = {
    "bytes", "low_bytes", "high_bytes", "capacity_bytes", "margin_bytes", "resource", "group", "phase", "instant",
    "rank", "when",
}  # fmt: skip
GROUP = {"name", "roles", "gpu", "gpus", "capacity_bytes", "phases", "engines"}
PHASE = {"name", "instant", "rank", "when", "states", "bytes", "low_bytes", "high_bytes", "processes", "terms"}
PROCESS = {"name", "allocated_bytes", "reserved_bytes", "other_bytes"}
TERM = {
    "name", "role", "process", "bytes", "low_bytes", "high_bytes", "counter", "elastic", "formula", "figures", "basis",
    "source",
}  # fmt: skip
ENGINE = {
    "role", "pool_bytes", "kv_bytes", "kv_bytes_per_token", "kv_tokens", "kv_least_bytes", "max_concurrency", "waves",
    "fraction_low", "fraction_high",
}  # fmt: skip
NODE = {"name", "phase", "host_bytes", "host_pinned_bytes", "host_capacity_bytes", "terms"}
ASSUMPTION = {"path", "value", "origin"}
UNREAD = {"key", "where"}
LEVER = {"name", "set", "native", "peak_bytes", "saves_bytes", "price", "verdict"}


@cache
def schemas() -> dict[str, Any]:
    return json.loads(answer("list schema").stdout)


@cache
def printed(name: str) -> Any:
    return json.loads(answer(f"{ANSWERS[name]} --json").stdout)


@pytest.mark.parametrize("verb", ["check", "explain", "read"])
def test_a_schema_is_a_schema(verb: str) -> None:
    Draft202012Validator.check_schema(schemas()[verb])


@pytest.mark.parametrize("name", COMMANDS)
def test_check_is_valid(name: str) -> None:
    Draft202012Validator(schemas()["check"]).validate(printed(name))


def test_explain_and_read_are_valid() -> None:
    for verb in ("explain", "read"):
        found = json.loads(answer(f"{verb} examples/trl_sft.yaml --gpu a100-sxm-80gb --json").stdout)
        Draft202012Validator(schemas()[verb]).validate(found)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_keys_of_schema_1(name: str) -> None:
    found = printed(name)
    assert found.keys() >= FORECAST
    assert found["schema"] == 1
    assert isinstance(found["predictions"], int)
    assert found["peak"].keys() >= PEAK
    assert found["peak"]["resource"] in ("gpu", "host")
    assert found["levers"]
    _all_have(found["levers"], LEVER)
    _all_have(found["groups"], GROUP)
    _all_have(found["nodes"], NODE)
    _all_have(found["assumptions"], ASSUMPTION)
    _all_have(found["unread"], UNREAD)
    for group in found["groups"]:
        _all_have(group["engines"], ENGINE)
        _all_have(group["phases"], PHASE)
        for phase in group["phases"]:
            _all_have(phase["processes"], PROCESS)
            _all_have(phase["terms"], TERM)
            assert phase["when"] in ("first", "steady")
            assert phase["states"].keys() == set(group["roles"])
            assert all(isinstance(term["bytes"], int) for term in phase["terms"])
            assert all(term["formula"] and term["figures"] and term["source"] for term in phase["terms"])


def _all_have(rows: list[dict[str, Any]], keys: set[str]) -> None:
    assert [keys - row.keys() for row in rows] == [set()] * len(rows)


def test_without_a_card_there_is_a_need_and_no_verdict() -> None:
    found = printed("inference")
    assert found["verdict"] is None
    assert found["peak"]["capacity_bytes"] is None
    assert found["peak"]["margin_bytes"] is None
    assert {card["gpu"] for card in found["cards"] if card["verdict"] == "fits"} >= {"a100-sxm-80gb", "h200-sxm-141gb"}
    assert {card["gpu"] for card in found["cards"] if card["verdict"] == "does_not_fit"} >= {"t4-16gb"}


LISTS = ["gpus", "models", "terms", "levers", "optimizers", "dtypes", "overheads", "algorithms", "frameworks", "paths"]


@pytest.mark.parametrize("what", LISTS)
def test_a_list_is_the_same_in_text_and_json(what: str) -> None:
    """The text has a line, or more where a cell is long, for every row; names are never cut."""
    text, rows = answer(f"list {what}").stdout.splitlines(), json.loads(answer(f"list {what} --json").stdout)
    first = next(iter(rows[0]))
    table = text[: text.index("")] if "" in text else text
    names = [line.split("  ")[0].strip() for line in table if not line.startswith(" ")]
    assert names == [first, *(row[first] for row in rows)]
    assert all(len(row) == len(rows[0]) for row in rows)


@pytest.mark.parametrize("what", LISTS)
def test_a_list_fits_a_page(what: str) -> None:
    """100 columns; what is cut, sources, ends with a mark."""
    text, rows = answer(f"list {what}").stdout.splitlines(), json.loads(answer(f"list {what} --json").stdout)
    assert [line for line in text if len(line) > 100] == []
    if what in ("gpus", "models"):
        return  # the figures of cards have letters for marks; sources of models are cut
    words = " ".join(text).split()
    for row in rows:
        for name, cell in row.items():
            if name != "source" and isinstance(cell, str):
                assert all(word in words for word in cell.split() if len(word) < 12), (name, cell)


def test_list_schema_names_the_verbs_with_json() -> None:
    assert schemas().keys() >= {"check", "explain", "read"}
