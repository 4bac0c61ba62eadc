"""LoRA as we count it beside PEFT's own, module by module (extra `trace`)."""

from __future__ import annotations

import pytest
from tests.models import peft_counts
from tests.models.test_adapters_cases import cases


@pytest.mark.trace
def test_peft_counts_the_same_of_the_same_configurations() -> None:
    pytest.importorskip("peft", reason="not compared with PEFT (extra `trace`)")
    done = [peft_counts.compare(*case) for case in cases()]
    assert len(done) > 200
    assert [one for one in done if one.differ] == []


@pytest.mark.trace
def test_the_facts_are_those_of_the_installed_peft() -> None:
    peft = pytest.importorskip("peft", reason="not compared with PEFT (extra `trace`)")
    held = peft_counts.FILE.read_text(encoding="utf-8")
    if f'"version": "{peft.__version__}"' not in held.partition("\n")[0]:
        pytest.skip(f"the facts are of another PEFT than the installed {peft.__version__}")
    assert peft_counts.facts() == held


@pytest.mark.trace
def test_modules_are_of_the_classes_that_transformers_builds() -> None:
    pytest.importorskip("transformers", reason="not compared with transformers (extra `trace`)")
    compared, found = peft_counts.kinds_that_differ()
    assert compared > 80
    assert found == []
