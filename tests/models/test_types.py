"""The tables: every type is where its family says it is, and the catalogue's types are all there or refused."""

from __future__ import annotations

from importlib import import_module

import pytest

from vramcast.catalog.models import model_config, model_names
from vramcast.models.fields import type_defaults
from vramcast.models.neutral import IGNORED, NEUTRAL, is_neutral
from vramcast.models.types import FAMILIES, family_of, row_of


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_lists_its_types(family: str) -> None:
    table = import_module(f"vramcast.models.types.{family}").TYPES
    assert FAMILIES[family].split() == sorted(table)


def test_no_type_is_in_two_families() -> None:
    names = [name for family in FAMILIES.values() for name in family.split()]
    assert len(names) == len(set(names)) == len(family_of())
    assert all(row_of(name) for name in names)


def test_the_catalogue_is_covered() -> None:
    types = {model_config(name).config["model_type"] for name in model_names()}
    assert types - set(family_of()) == {"phi3_v", "kimi_k3"}
    assert set(family_of()) <= types


def test_every_type_has_its_defaults() -> None:
    assert [name for name in family_of() if not type_defaults(name).fields] == []
    versions = {type_defaults(name).version for name in family_of()}
    assert versions == {"5.24.0", ""}


def test_what_is_ignored_belongs_to_a_type() -> None:
    assert set(IGNORED) <= set(family_of())
    assert [entry for words in IGNORED.values() for entry in words.split() if entry.partition("=")[0] in NEUTRAL] == []


@pytest.mark.parametrize("field", ["hidden_size", "num_experts", "head_dim", "layer_types", "mlp_bias", "vocab_size"])
def test_sizes_are_not_neutral(field: str) -> None:
    assert not is_neutral("llama", field, 8)
