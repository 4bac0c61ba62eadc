"""Parameter by parameter against transformers' own classes (extra `trace`); says so when it cannot."""

from __future__ import annotations

import importlib
import sys

import pytest
from tests.models import classes


def _need_transformers() -> None:
    """Skip, with the reason, where the classes cannot be built."""
    for name in ("torch", "transformers"):
        try:
            importlib.import_module(name)
        except ImportError:
            pytest.skip(f"not compared with transformers' classes: no {name} (extra `trace`)")


@pytest.mark.trace
def test_every_class_has_our_tensors() -> None:
    _need_transformers()
    found = [classes.compare(row) for row in classes.smallest_of_each_type()]
    built = [one for one in found if one.differ is not None]
    assert len({one.class_name for one in built}) >= 60
    assert {one.model_type: one.differ[:3] for one in built if one.differ} == {}


def test_without_transformers_it_is_skipped_and_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(pytest.skip.Exception, match="not compared with transformers' classes: no torch"):
        test_every_class_has_our_tensors()


def test_a_type_without_a_class_is_not_counted_as_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: object) -> tuple[str, classes.Tensors]:
        raise LookupError("no class for qwen")

    monkeypatch.setattr(classes, "theirs", nothing)
    one = classes.compare(classes.model_config("Qwen/Qwen-7B"))
    assert (one.differ, one.why) == (None, "no class for qwen")


def test_a_missing_tensor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    row = classes.model_config("Qwen/Qwen2.5-0.5B")
    ours = classes.build_layout(row.id, row.config, row.where).tensors()
    changed = {**ours, "model.norm.weight": (1,), "extra": (2, 3)}
    monkeypatch.setattr(classes, "theirs", lambda _: ("Fake", changed))
    assert classes.compare(row).differ == ["extra", "model.norm.weight"]
