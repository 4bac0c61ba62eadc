"""What lives at an event, as lines of a flame graph and as a tree."""

from __future__ import annotations

from tests.trace.scripts import Script

from vramcast.trace.allocator import parse
from vramcast.trace.flame import folded, live, tree
from vramcast.trace.recording import Recording
from vramcast.trace.replay import replay
from vramcast.units import MIB


def step() -> Recording:
    script = Script().mark("load").born("w0", 40 * MIB, "model.layers.0.mlp", "weight", "empty")
    script.born("w1", 40 * MIB, "model.layers.1.mlp", "weight", "empty").born("t", 2 * MIB, op="copy;to\nGPU")
    script.mark("update").born("a", 20 * MIB, "model.layers.0.mlp").born("b", 20 * MIB, "model.layers.0.mlp")
    return script.dead("t").empty().dead("a", "b").recording()


def test_nothing_lives_before_all() -> None:
    assert folded(step(), -1) == []
    assert live(step(), -1) == []


def test_lines_have_the_module_the_operator_and_the_bytes() -> None:
    """Equal stacks are one line; nothing in a name ends a frame or a line."""
    assert folded(step(), 4) == [
        f"(no module);copy:to GPU [activation] {2 * MIB}",
        f"model;layers;0;mlp;empty [weight] {40 * MIB}",
        f"model;layers;0;mlp;mm [activation] {40 * MIB}",
        f"model;layers;1;mlp;empty [weight] {40 * MIB}",
    ]


def test_the_dead_are_gone() -> None:
    assert folded(step(), 8) == [
        f"model;layers;0;mlp;empty [weight] {40 * MIB}",
        f"model;layers;1;mlp;empty [weight] {40 * MIB}",
    ]


def test_lines_sum_to_what_is_requested_at_the_peak() -> None:
    for span in replay(step(), parse("")).spans:
        assert sum(int(line.rsplit(" ", 1)[1]) for line in folded(step(), span.event)) == span.requested


def test_a_tree_for_the_terminal() -> None:
    """2 of 122 MiB are less than a fiftieth."""
    assert tree(step(), 4) == [
        "  0.12 GiB  everything",
        "  0.12 GiB    model",
        "  0.12 GiB      layers × 2",
        "  0.12 GiB        mlp",
        " 80.00 MiB          [weight]",
        " 40.00 MiB          [activation]",
        "  2.00 MiB    (less)",
    ]


def test_a_tree_may_be_cut_short() -> None:
    assert tree(step(), 4, depth=1) == ["  0.12 GiB  everything", "  0.12 GiB    model", "  2.00 MiB    (less)"]
    assert tree(step(), -1) == ["       0 B  everything"]
