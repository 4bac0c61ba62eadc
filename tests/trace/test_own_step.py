"""A user's own step: what code written for a card does here, what it is told in, and what is refused."""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.cases import run
from tests.trace.traced import most
from tests.trace.traced import question as job_question

from vramcast.catalog.gpus import find_gpu
from vramcast.errors import Refused
from vramcast.trace import OwnTrace, trace_own
from vramcast.trace.process import Child
from vramcast.trace.recording import EMPTY_CACHE, Recording
from vramcast.types.result import PhaseBytes

GPU = find_gpu("a100-sxm-80gb")
NEW = itertools.count()
Traces = Callable[..., OwnTrace]

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, BLOCKS, WORDS, BATCH, LENGTH = 64, 3, 512, 4, 32

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))

class Net(nn.Module):
    def __init__(self, recompute=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers, self.recompute = nn.ModuleList(Block() for _ in range(BLOCKS)), recompute
    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return self.head(x)

def loss_of(model, ids):
    return F.cross_entropy(model(ids).view(-1, WORDS).float(), ids.view(-1))

def trained(model, optimizer, ids):
    loss = loss_of(model, ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""
PARAMETERS = 2 * 512 * 64 + 3 * (2 * 4 * 64 * 64 + 5 * 64)
PLAIN = """
def build():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return lambda: trained(model, optimizer, torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda"))
"""


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    pytest.importorskip("torch", reason="no step was run (extra `trace`)")
    with Child() as child:
        yield child


@pytest.fixture
def traced(child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traces:
    """Trace `build` of some source behind MODEL, in a module of its own: the child imports each name once."""
    monkeypatch.chdir(tmp_path)

    def trace(*sources: str, function: str = "build", name: str = "") -> OwnTrace:
        name = name or f"mine_{next(NEW)}"
        Path(f"{name}.py").write_text(MODEL + "".join(map(textwrap.dedent, sources)))
        return trace_own(f"{name}:{function}", GPU, "", child)

    return trace


def at(found: OwnTrace, when: str, phase: str) -> list[PhaseBytes]:
    return [each for each in found.judged.phases if (each.when, each.name) == (when, phase)]


def terms(found: OwnTrace, when: str, phase: str) -> dict[str, int]:
    """At the worst instant of a phase."""
    worst = max(at(found, when, phase), key=lambda each: each.processes[0].allocated_bytes)
    return {term.name: term.bytes for term in worst.terms}


def shape(recording: Recording) -> tuple[list[int], list[int]]:
    return recording.events, [storage.bytes for storage in recording.storages]


# --- a step as it is written ------------------------------------------------------------------------------------------


@pytest.mark.trace
def test_a_step_has_the_instants_of_a_job(traced: Traces) -> None:
    found = traced(PLAIN)
    for when in ("first", "steady"):
        assert [(each.name, each.instant) for each in found.judged.phases if each.when == when] == [
            *([("load", "built")] if when == "first" else []),
            *[("forward", "last block"), ("loss", "head"), ("backward", "loss"), ("backward", "first block")],
            *[("backward", "blocks"), ("backward", "last block"), ("backward", "embedding"), ("step", "update")],
        ]
    assert found.judged.verdict == "fits"


@pytest.mark.trace
def test_what_stays_is_told_by_what_it_is(traced: Traces) -> None:
    """fp32 weights, gradients and two states of AdamW, to the byte; its counts of steps are 4 bytes a parameter."""
    found = terms(traced(PLAIN), "steady", "step")
    assert found["weights"] == found["gradients"] == 4 * PARAMETERS
    assert found["optimizer.state"] == 8 * PARAMETERS + 4 * (2 + 3 * 4)
    assert found["cublas.workspace"] == 2 * GPU.cublas_workspace_bytes.value + (1 << 20)  # a bias, in forward only
    assert terms(traced(PLAIN), "first", "load")["weights"] == 4 * PARAMETERS


SPELLINGS = [
    ('Net().to("cuda")', 'torch.zeros(BATCH, LENGTH, dtype=torch.long).cuda()'),
    ('Net().to(0)', 'torch.zeros(BATCH, LENGTH, dtype=torch.long, device=0)'),
    ('Net().to(device=torch.device("cuda:0"))', 'torch.zeros(BATCH, LENGTH, dtype=torch.long).cuda(0, True)'),
    ('Net().cuda(0)', 'torch.empty(BATCH, LENGTH, dtype=torch.long, device=torch.device("cuda", 0))'),
    ('Net().to("cuda", torch.float32)', 'torch.zeros(BATCH, LENGTH, dtype=torch.long).to("cuda:0")'),
]  # fmt: skip


@pytest.mark.trace
@pytest.mark.parametrize(("model", "ids"), SPELLINGS)
def test_the_card_may_be_named_in_any_way(traced: Traces, model: str, ids: str) -> None:
    other = PLAIN.replace("Net().cuda()", model)
    other = other.replace('torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")', ids)
    assert shape(traced(other).judged.recording) == shape(traced(PLAIN).judged.recording)


@pytest.mark.trace
def test_a_default_device_is_the_card_too(traced: Traces) -> None:
    other = """
    def build():
        with torch.device("cuda"):
            model, ids = Net(), torch.zeros(BATCH, LENGTH, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        return lambda: trained(model, optimizer, torch.zeros_like(ids))
    """
    assert terms(traced(other), "steady", "step")["weights"] == 4 * PARAMETERS


@pytest.mark.trace
def test_autocast_of_the_card(traced: Traces) -> None:
    """Casts of the weights live in forward; its dtype is fp16 if none is named."""
    found = traced(
        """
        def build():
            model = Net().cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            def step():
                with torch.autocast("cuda"):
                    assert torch.is_autocast_enabled() and torch.get_autocast_gpu_dtype() == torch.float16
                    loss = loss_of(model, torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda"))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            return step
        """
    )
    matrices = PARAMETERS - 512 * 64  # of which the embedding is none
    casts = [each for each in found.judged.recording.storages if each.purpose == "cast"]
    assert sum(each.bytes for each in casts) == 2 * 2 * matrices
    shapes = {found.judged.recording.names[each.shape].rpartition(" ")[2] for each in casts}
    assert shapes == {"fp16"}


@pytest.mark.trace
def test_a_scaler_finds_no_infinity_and_steps(traced: Traces) -> None:
    found = traced(
        """
        def build():
            model = Net().cuda()
            optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
            def step():
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = loss_of(model, torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda"))
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            return step
        """
    )
    assert terms(found, "steady", "step")["optimizer.state"] >= 8 * PARAMETERS
    assert found.judged.recording.assumed == []


@pytest.mark.trace
def test_recompute_saves_activations(traced: Traces) -> None:
    """Blocks that run again in backward begin no forward."""
    plain, again = traced(PLAIN), traced(PLAIN.replace("Net()", "Net(recompute=True)"))
    saved = [terms(found, "steady", "loss")["activations.saved"] for found in (again, plain)]
    assert 3 * saved[0] < saved[1]
    assert [each.instant for each in at(again, "steady", "forward")] == ["last block"]
    marks = [mark.phase for mark in again.judged.recording.marks]
    assert all(found != ("backward", "forward") for found in itertools.pairwise(marks))


@pytest.mark.trace
def test_casts_keep_the_parameters_that_an_optimizer_knows(traced: Traces) -> None:
    found = traced(
        """
        def build():
            model = Net()
            optimizer = torch.optim.AdamW(model.parameters())
            before = [id(each) for each in model.parameters()]
            model.to("cuda", torch.bfloat16)
            assert before == [id(each) for each in model.parameters()]
            return lambda: trained(model, optimizer, torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda"))
        """
    )
    assert terms(found, "steady", "step")["weights"] == 2 * PARAMETERS
    assert terms(found, "steady", "step")["optimizer.state"] == 4 * PARAMETERS + 4 * (2 + 3 * 4)


@pytest.mark.trace
def test_a_model_may_come_from_the_meta_device_or_be_copied(traced: Traces) -> None:
    """A copy that follows the model has weights too."""
    found = traced(
        """
        import copy
        def build():
            with torch.device("meta"):
                model = Net()
            model.to_empty(device="cuda")
            follows = copy.deepcopy(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            def step():
                ids = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
                with torch.no_grad():
                    follows(ids)
                trained(model, optimizer, ids)
                with torch.no_grad():
                    for old, new in zip(follows.parameters(), model.parameters()):
                        old.lerp_(new, 0.1)
            return step
        """
    )
    assert terms(found, "steady", "step")["weights"] == 2 * 4 * PARAMETERS


@pytest.mark.trace
def test_the_cache_is_emptied_where_the_step_does_it(traced: Traces) -> None:
    """And what else code asks of the card has an answer."""
    found = traced(
        """
        def build():
            step = plain()
            def measured():
                torch.cuda.reset_peak_memory_stats()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                step()
                end.record()
                torch.cuda.synchronize()
                assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (8, 0)
                torch.cuda.empty_cache()
                return start.elapsed_time(end), torch.cuda.max_memory_allocated()
            return measured
        """,
        PLAIN.replace("build", "plain"),
    )
    assert found.judged.recording.events.count(EMPTY_CACHE) == 2


@pytest.mark.trace
def test_what_the_module_makes_and_a_function_that_is_the_step(traced: Traces) -> None:
    """A model may be there before the function is called; the first call is the first step."""
    source = """
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    def build():
        trained(model, optimizer, torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda"))
    """
    found, usual = traced(source), traced(PLAIN)
    for when in ("first", "steady"):
        assert terms(found, when, "backward") == terms(usual, when, "backward")
    assert terms(found, "first", "load")["weights"] == 4 * PARAMETERS
    batch = 4 * 32 * 8
    assert most(found.judged.recording, ("first", "load", "built")) == 4 * PARAMETERS + batch


@pytest.mark.trace
def test_compilation_is_left_out_and_said(traced: Traces) -> None:
    found = traced(PLAIN.replace("Net().cuda()", "torch.compile(Net().cuda())"))
    assert shape(found.judged.recording) == shape(traced(PLAIN).judged.recording)
    assert found.judged.recording.assumed == ["torch.compile is left out: the step runs as it is written"]


@pytest.mark.trace
def test_blocks_may_take_and_give_anything(traced: Traces) -> None:
    """By name, in a mapping, or no tensor at all."""
    source = (
        PLAIN
        + """
class Block(Block):
    def forward(self, state):
        return {"x": super().forward(state["x"]), "count": state["count"] + 1}
class Net(Net):
    def forward(self, ids):
        state = {"x": self.embed(ids), "count": 0}
        for layer in self.layers:
            state = layer(state=state)
        return self.head(state["x"])
"""
    )
    assert shape(traced(source).judged.recording) == shape(traced(PLAIN).judged.recording)


@pytest.mark.trace
def test_a_model_of_transformers_is_as_in_a_job(traced: Traces, child: Child) -> None:
    """Blocks, head and loss at the same instants, the same bytes in each; no mask where there is no padding."""
    from vramcast.trace import record

    found = traced(
        f"""
        from transformers import AutoConfig, AutoModelForCausalLM
        FIELDS = {job_question().config!r}
        def build():
            kind = FIELDS.pop("model_type")
            config = AutoConfig.for_model(kind, **FIELDS, use_cache=False)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).cuda()
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            def step():
                ids = torch.zeros(2, 64, dtype=torch.long, device="cuda")
                labels = torch.zeros(2, 64, dtype=torch.long, device="cuda")
                mask = torch.ones(2, 64, dtype=torch.long, device="cuda")
                loss = model(input_ids=ids, labels=labels, attention_mask=mask).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            return step
        """
    )
    job = job_question(cublas_bytes=GPU.cublas_workspace_bytes.value, capability="8.0")
    usual = record(job, child)
    assert found.judged.recording.assumed == ["no batch has padding"]
    for phase, instant in [("forward", "last block"), ("loss", "head"), ("backward", "loss"), ("backward", "blocks"),
                           ("backward", "embedding"), ("step", "update")]:  # fmt: skip
        key = ("steady", phase, instant)
        assert most(found.judged.recording, key) == pytest.approx(most(usual, key), abs=4096)


# --- what a trace does not know ---------------------------------------------------------------------------------------


@pytest.mark.trace
def test_a_number_that_is_logged_is_assumed_with_its_place(traced: Traces) -> None:
    found = traced(
        """
        def build():
            step = plain()
            return lambda: print("loss", step().item())
        """,
        PLAIN.replace("build", "plain"),
        name="logged",
    )
    line = 1 + (MODEL + "\ndef build():\n    step = plain()\n").count("\n")
    assert found.judged.recording.assumed == [f"the value read at {os.getcwd()}/logged.py:{line} is 1"]


def mistake(traced: Traces, source: str, function: str = "build") -> tuple[str, dict[str, str]]:
    """Fact and context of a refusal; places within the module as `:line of the source`."""
    name = f"wrong_{next(NEW)}"
    with pytest.raises(Refused) as caught:
        traced(source, function=function, name=name)
    (found,) = caught.value.mistakes
    context = found.context
    place, _, line = context.get("at", "").rpartition(":")
    if place == f"{os.getcwd()}/{name}.py":
        context["at"] = f"source:{int(line) - MODEL.count(chr(10))}"
    return found.fact.replace(name, "NAME"), context


@pytest.mark.trace
@pytest.mark.parametrize("condition", ["(x > 0).any()", "bool(x[0] > 0)", "x.sum() > 1", "torch.isnan(x).all()"])
def test_a_branch_on_data_names_operator_and_place(traced: Traces, condition: str) -> None:
    fact, context = mistake(traced, f"def build():\n  x = torch.ones(3, device='cuda')\n  if {condition}:\n    pass\n")
    assert fact == "the step branches on data: aten._local_scalar_dense.default"
    assert context["at"] == "source:3"
    assert context["do"]


@pytest.mark.trace
@pytest.mark.parametrize(
    ("selection", "operator"), [("x[x > 0]", "aten.nonzero.default"), ("x.unique()", "aten._unique2.default")]
)
def test_a_shape_that_depends_on_data_is_refused(traced: Traces, selection: str, operator: str) -> None:
    fact, context = mistake(traced, f"def build():\n  x = torch.ones(3, device='cuda')\n  return {selection}\n")
    assert fact == f"the step needs values that a trace does not have: {operator}"
    assert context["at"] == "source:3"


# --- mistakes ---------------------------------------------------------------------------------------------------------

ENDS = [
    ("def build():\n  raise ValueError('my own mistake')", "ValueError: my own mistake", "source:2"),
    ("def build():\n  raise ValueError('first\\nsecond')", "ValueError: first", "source:2"),
    ("def build():\n  assert False", "AssertionError: without a word", "source:2"),
    ("def build():\n  x = torch.ones(2, 3)\n  return x @ x", "RuntimeError: a and b must have same", "source:3"),
    ("def build():\n  return lambda: [][0]", "IndexError: list index out of range", "source:2"),
    ("def build():\n  input()", "EOFError: EOF when reading a line", "source:2"),
    ("import sys\ndef build():\n  sys.exit('enough')", "SystemExit: enough", "source:3"),
    ("raise KeyError('at import')\ndef build(): ...", "KeyError: 'at import'", "source:1"),
    ("def build(:\n", "SyntaxError: invalid syntax", "source:1"),
]  # fmt: skip


@pytest.mark.trace
@pytest.mark.parametrize(("source", "said", "place"), ENDS)
def test_an_exception_of_the_user_is_said_with_its_place(traced: Traces, source: str, said: str, place: str) -> None:
    fact, context = mistake(traced, source)
    assert fact.startswith(f"the traced step failed: {said}")
    assert "\n" not in fact
    assert context["at"] == place


@pytest.mark.trace
def test_a_step_takes_no_arguments(traced: Traces) -> None:
    for source, who in (
        ("def build(batch): ...", "it"),
        ("def build():\n  return lambda batch: batch", "what it returns"),
    ):
        fact, context = mistake(traced, source)
        assert fact == f"--step NAME:build: {who} is called without arguments: missing a required argument: 'batch'"
        assert context["do"]


@pytest.mark.trace
def test_a_model_is_no_step(traced: Traces) -> None:
    assert mistake(traced, "def build(): return Net()")[0] == "--step NAME:build returns a model"


@pytest.mark.trace
def test_names_that_are_not_there_are_refused_with_near_ones(traced: Traces, child: Child) -> None:
    assert mistake(traced, PLAIN, "biuld") == ("--step NAME:biuld: NAME has no function 'biuld'", {"near": "build"})
    assert mistake(traced, "count = 1", "count")[0] == "--step NAME:count: NAME has no function 'count'"
    fact, context = mistake(traced, "import no_such_library\n")
    assert (fact, context) == ("--step NAME:build: NAME needs 'no_such_library'", {"at": "source:1"})
    Path("training.py").write_text(PLAIN)
    with pytest.raises(Refused) as caught:
        trace_own("trainnig:build", GPU, "", child)
    (found,) = caught.value.mistakes
    assert found.fact == "--step trainnig:build: no module 'trainnig'"
    assert found.context == {"near": "training", "looked": os.getcwd()}


TARGETS = [
    ("train", "a module and a function are needed", "--step train:FUNCTION"),
    (":step", "a module and a function are needed", "--step MODULE:FUNCTION"),
    ("train.py:step", "a module is named as it is imported", "--step train:step"),
    ("./src/train.py:step", "a module is named as it is imported", "--step src.train:step"),
]


@pytest.mark.parametrize(("target", "fact", "use"), TARGETS)
def test_a_target_is_a_module_and_a_function(target: str, fact: str, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before a process starts."""
    monkeypatch.setattr("vramcast.trace.process.NEEDED", ())
    ran = run(f"trace --step {target} --gpu a100-sxm-80gb")
    assert (ran.exit, ran.stderr) == (2, f"error: --step {target}: {fact}\n  use  {use}\n")


def test_a_step_needs_a_card_and_nothing_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.trace.process.NEEDED", ())
    assert "no card given" in run("trace --step train:step").stderr
    ran = run("trace --step train:step --gpu a100-sxm-80gb --set micro_batch=2 --set seq_len=3")
    assert (ran.exit, ran.stdout) == (2, "")
    assert "micro_batch, seq_len cannot be set" in ran.stderr
