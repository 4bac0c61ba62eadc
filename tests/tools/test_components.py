"""Published rows of single operators: what is run."""

from __future__ import annotations

from typing import Any

import pytest
from tools.rows.components import component_of
from tools.rows.jobs import Skip

ROW: dict[str, Any] = {
    "id": "liger-csv-fused-linear-cross-entropy-liger-bt4096",
    "stack": "other",
    "workload": "component:fused_linear_cross_entropy",
    "model": {"name": "head", "config": {"H": 4096, "V": 128256, "BT": 4096}},
    "gpu": "NVIDIA A100-SXM4-80GB",
    "notes": "liger 0.4.2.",
    "readings": [{"quantity": "allocated_peak", "unit": "bytes", "score": "relative", "value": 4451781836}],
}


def test_a_head() -> None:
    found = component_of(ROW)
    assert found is not None
    assert (found.kind, found.code, found.version) == ("linear_cross_entropy", "liger", "0.4.2")
    assert (found.sequences, found.length, found.hidden, found.vocab) == (1, 4096, 4096, 128256)
    assert (found.capability, found.cublas_bytes, found.left_bytes) == ("8.0", 8_519_680, 0)


@pytest.mark.parametrize("change", [{"workload": "sft"}, {"gpu": "MI250X"}, {"workload": "component:fwd+bwd"}])
def test_something_else(change: dict[str, Any]) -> None:
    assert component_of(ROW | change) is None


def test_what_the_source_leaves_out_is_named() -> None:
    with pytest.raises(Skip, match="the source leaves out what the value depends on: H"):
        component_of(ROW | {"model": {"config": {"V": 1, "BT": 1}}})
