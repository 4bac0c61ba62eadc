"""How a user's mistakes are shown, letter by letter."""

import pytest

from vramcast.errors import Mistake, Mistakes, Refused, VramcastError, near, refuse

TP = """\
error: tp = 6 does not divide heads = 32
  tp       train.sh:41  actor_rollout_ref.rollout.tensor_model_parallel_size
  heads    Qwen/Qwen3-8B config.json
  allowed  1, 2, 4, 8, 16, 32"""


def test_a_fact_and_its_context() -> None:
    refused = refuse(
        "tp = 6 does not divide heads = 32",
        tp="train.sh:41  actor_rollout_ref.rollout.tensor_model_parallel_size",
        heads="Qwen/Qwen3-8B config.json",
        allowed="1, 2, 4, 8, 16, 32",
    )
    assert str(refused) == TP
    assert isinstance(refused, VramcastError)


def test_empty_context_takes_no_line_and_no_width() -> None:
    assert str(Mistake("unknown GPU 'x'", nearest_names="", help="see the list")) == (
        "error: unknown GPU 'x'\n  help  see the list"
    )
    assert str(Mistake("alone")) == "error: alone"


def test_all_mistakes_are_raised_together() -> None:
    mistakes = Mistakes()
    mistakes.add("first", where="line 1")
    with mistakes.collect():
        raise Refused([Mistake("second"), Mistake("third")])
    with mistakes.collect():
        pass
    with pytest.raises(Refused) as caught:
        mistakes.done()
    assert str(caught.value) == "error: first\n  where  line 1\nerror: second\nerror: third"


def test_done_without_mistakes_goes_on() -> None:
    Mistakes().done()


def test_only_refusals_are_collected() -> None:
    mistakes = Mistakes()
    with pytest.raises(ZeroDivisionError), mistakes.collect():
        raise ZeroDivisionError
    assert mistakes.found == []


def test_near_names() -> None:
    cards = ["h100-sxm-80gb", "h100-nvl-94gb", "A100-SXM-80GB", "t4-16gb"]
    assert near("a100-sxm-80", cards).split(", ")[0] == "A100-SXM-80GB"
    assert near("zzz", cards) == ""
