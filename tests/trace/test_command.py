"""`vramcast trace`: its text, its JSON, its files, its exit codes; and `check --method trace`.

Most of it with a hand-made recording in the place of a step, which needs no torch.
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.cli.cases import run
from tests.trace.scripts import Script

from vramcast.trace import process
from vramcast.trace.process import Child, Tell
from vramcast.trace.question import Asked
from vramcast.trace.recording import Recording
from vramcast.trace.wire import Progress
from vramcast.units import GIB, MIB

CONFIG = {
    "model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 768, "vocab_size": 8192,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
JOB = "--model config.json --gpu a100-sxm-80gb --set seq_len=512 --set micro_batch=2"
UNKNOWN = f"{JOB} --set attention=cudnn"
"""a job that the formulas do not know"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, and a cache of its own."""
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    Path("config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "job"


def schema(verb: str) -> Draft202012Validator:
    found = json.loads(run("list schema").stdout)[verb]
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


# --- a hand-made recording --------------------------------------------------------------------------------------------


def step(scale: int = 1) -> Recording:
    """Weights of 20 MiB that a step of 60 updates."""
    script = Script().mark("load", "built", "first").born("weights", 20 * MIB, "model.embed", "weight", "empty")
    for when in ("first", "steady"):
        script.mark("forward", "last block", when, block=0)
        script.born(f"a {when}", 30 * MIB * scale, "model.layers.0.mlp", op="aten.mm.default", block=0)
        script.mark("backward", "first block", when, block=0).born(f"g {when}", 20 * MIB, "model.embed", "gradient")
        script.dead(f"a {when}").mark("step", "update", when)
        if when == "first":
            script.born("state", 40 * MIB, "model.embed", "state")
        script.dead(f"g {when}")
    return script.recording()


class Pretended(Child):
    """Stands where the child process is."""

    recorded = step()
    asked: list[Asked]

    def __init__(self) -> None:
        type(self).asked = []

    def __exit__(self, *_: object) -> None:
        pass

    def record(self, question: Asked, tell: Tell = lambda progress: None) -> Recording:
        tell(Progress("running the step", 1, 2))
        self.asked.append(question)
        return self.recorded


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> type[Pretended]:
    monkeypatch.setattr(process, "Child", Pretended)
    monkeypatch.setattr(Pretended, "recorded", step())
    return Pretended


TEXT = """\
trace    FITS: 0.58 GiB of 79.15 GiB on 1 × a100-sxm-80gb, 78.57 GiB to spare
formula  none: attention = cudnn is not modelled yet
peak     backward · first block (every later step)

MiB                                           allocated               reserved
phase · instant                         trace   formula        trace   formula
  first step
    load · built                         20.0         –         20.0         –
    forward · last block                 50.0         –         50.0         –
    backward · first block               70.0         –         70.0         –
    step · update                        80.0         –        110.0         –
  every later step
    forward · last block                 90.0         –        110.0         –
    backward · first block              110.0         –        110.0         –
    step · update                        80.0         –        110.0         –

traced with torch 9.9
assumed: the loss is 1
"""


def test_the_text_is_pinned(pretended: type[Pretended], monkeypatch: pytest.MonkeyPatch) -> None:
    from msgspec import structs

    told = structs.replace(step(), versions={"torch": "9.9"}, assumed=["the loss is 1"])
    monkeypatch.setattr(pretended, "recorded", told)
    ran = run(f"trace {UNKNOWN}")
    assert (ran.exit, ran.stdout, ran.stderr) == (0, TEXT, "")


def test_both_methods_are_side_by_side(pretended: type[Pretended]) -> None:
    """Where they are most apart first; a row for each that is 1 MiB off, until there are too many."""
    ran = run(f"trace {JOB}")
    assert re.search(r"^formula  0\.\d\d GiB, \d+\.\d\d % of the trace$", ran.stdout, re.MULTILINE)
    rows = re.findall(r"^  ([a-z._]+)  .* ([+-][\d,]+\.\d)$", ran.stdout, re.MULTILINE)
    off = [abs(float(apart.replace(",", ""))) for _, apart in rows]
    assert len(rows) == 12
    assert off == sorted(off, reverse=True)
    counts = re.search(r"^  (\d+) more: --json has them all\n(\d+) of (\d+) rows", ran.stdout, re.MULTILINE)
    assert counts
    more, agree, rows_in_all = map(int, counts.groups())
    assert rows_in_all - agree == 12 + more


def test_the_json_obeys_the_schema(pretended: type[Pretended]) -> None:
    for words in (JOB, UNKNOWN):
        found = json.loads(run(f"trace {words} --json").stdout)
        schema("trace").validate(found)
        assert (found["schema"], found["verdict"], found["out_of_memory"]) == (1, "fits", None)
        assert (found["formula_peak"] is None) == (words is UNKNOWN) == bool(found["formula_unknown"])
        steady = [row for row in found["instants"] if (row["when"], row["phase"]) == ("steady", "step")]
        assert [row["trace"]["allocated_bytes"] for row in steady] == [80 * MIB]
        assert [row["formula"] is None for row in steady] == [words is UNKNOWN]


def test_a_card_that_is_full_is_told_with_what_was_asked_for(
    pretended: type[Pretended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretended, "recorded", step(scale=2700))  # 79.1 GiB
    ran = run(f"trace {UNKNOWN}")
    assert ran.exit == 1
    head = ran.stdout.splitlines()
    assert head[0].startswith("trace    DOES NOT FIT: ")
    assert head[3:5] == [
        "ends     forward · last block (first step): no room for 81,000.0 MiB of",
        "         aten.mm.default in model.layers.0.mlp",
    ]
    found = json.loads(run(f"trace {UNKNOWN} --json").stdout)
    assert found["out_of_memory"] == {
        "phase": "forward", "instant": "last block", "when": "first", "asked_bytes": 81000 * MIB,
        "operator": "aten.mm.default", "module": "model.layers.0.mlp",
    }  # fmt: skip


def test_without_a_card_there_is_a_need_and_no_verdict(pretended: type[Pretended]) -> None:
    words = UNKNOWN.replace("--gpu a100-sxm-80gb ", "")
    ran = run(f"trace {words}")
    assert (ran.exit, ran.stdout[:24]) == (0, "trace    NEEDS 0.58 GiB ")
    assert run(f"check {words} --method trace").exit == 0


def test_check_answers_by_trace_in_its_own_words(pretended: type[Pretended]) -> None:
    """No levers: they would be estimated by formulas."""
    ran = run(f"check {UNKNOWN} --method trace")
    assert (ran.exit, ran.stdout.splitlines()[0]) == (0, TEXT.splitlines()[0].removeprefix("trace    "))
    assert "change first" not in ran.stdout
    found = json.loads(run(f"check {UNKNOWN} --method trace --json").stdout)
    schema("check").validate(found)
    assert (found["schema"], found["verdict"], found["levers"]) == (1, "fits", [])
    _obeys_the_laws(found)


def _obeys_the_laws(found: Any) -> None:
    """Σ terms = Σ processes = bytes; the peak is the largest instant."""
    phases = found["groups"][0]["phases"]
    for phase in phases:
        assert sum(term["bytes"] for term in phase["terms"]) == phase["bytes"]
        assert sum(term["low_bytes"] for term in phase["terms"]) == phase["low_bytes"] <= phase["bytes"]
        assert sum(term["high_bytes"] for term in phase["terms"]) == phase["high_bytes"] >= phase["bytes"]
        assert sum(one["reserved_bytes"] + one["other_bytes"] for one in phase["processes"]) == phase["bytes"]
        for one in phase["processes"]:
            assert one["allocated_bytes"] <= one["reserved_bytes"]
    assert found["peak"]["bytes"] == max(phase["bytes"] for phase in phases)
    assert found["peak"]["margin_bytes"] == found["peak"]["capacity_bytes"] - found["peak"]["bytes"]


def test_a_question_is_asked_once_unless_told_otherwise(pretended: type[Pretended]) -> None:
    asked: list[int] = []
    for words in ("", "", "--no-cache", "--set allocator=expandable_segments:True", "--set seq_len=256"):
        run(f"trace {UNKNOWN} {words}")
        asked.append(len(pretended.asked))
    assert asked == [1, 0, 1, 0, 1]  # another allocator is another replay of the same step


# --- files ------------------------------------------------------------------------------------------------------------


def test_what_the_peak_holds_is_a_tree_or_a_file(pretended: type[Pretended]) -> None:
    tree = run(f"trace {UNKNOWN} --flame").stdout.removeprefix(run(f"trace {UNKNOWN}").stdout)
    assert tree.splitlines()[:4] == ["", "the peak by module", "  0.11 GiB  everything", "  0.11 GiB    model"]
    assert run(f"trace {UNKNOWN} --flame peak.txt").exit == 0
    assert Path("peak.txt").read_text().splitlines() == [
        f"model;embed;empty [weight] {20 * MIB}",
        f"model;embed;mm [gradient] {20 * MIB}",
        f"model;embed;mm [state] {40 * MIB}",
        f"model;layers;0;mlp;aten.mm.default [activation] {30 * MIB}",
    ]


def test_the_snapshot_is_pytorchs(pretended: type[Pretended]) -> None:
    assert run(f"trace {UNKNOWN} --snapshot peak.pickle").exit == 0
    made = pickle.loads(Path("peak.pickle").read_bytes())
    assert sum(segment["allocated_size"] for segment in made["segments"]) == 60 * MIB
    assert [entry["action"] for entry in made["device_traces"][0][:2]] == ["segment_alloc", "alloc"]


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ("--snapshot no/where", "--snapshot no/where: there is no folder no"),
        ("--flame no/where", "--flame no/where: there is no folder no"),
        ("--snapshot .", "--snapshot . is a folder"),
        ("--json --flame", "--json and --flame would both be on standard output\n  use  --flame FILE"),
        ("--save-arch no/where", "--save-arch no/where: there is no folder no"),
        (
            "--snapshot config.json",
            "--snapshot config.json: there is something else, and it stays\n  use  another name",
        ),
        ("--flame config.json", "--flame config.json: there is something else, and it stays\n  use  another name"),
        (
            "--save-arch config.json",
            "--save-arch config.json: there is something else, and it stays\n  use  another name",
        ),
        ("--snapshot link", "--snapshot link is a link to another place, which stays as it is\n  use  another name"),
        ("--flame link", "--flame link is a link to another place, which stays as it is\n  use  another name"),
        ("--save-arch link", "--save-arch link is a link to another place, which stays as it is\n  use  another name"),
    ],
)
def test_a_file_that_cannot_be_written_is_said_before_the_work(
    pretended: type[Pretended], words: str, fact: str
) -> None:
    pretended.asked = []
    Path("link").symlink_to("config.json")
    ran = run(f"trace {UNKNOWN} {words}")
    assert (ran.exit, ran.stdout, ran.stderr) == (2, "", f"error: {fact}\n")
    assert pretended.asked == []


def test_what_a_trace_wrote_is_written_anew(pretended: type[Pretended]) -> None:
    """And a pipe takes what comes."""
    for _ in range(2):
        assert run(f"trace {UNKNOWN} --snapshot peak.pickle --flame stacks.txt").exit == 0
    assert run(f"trace {UNKNOWN} --flame peak.pickle").exit == run(f"trace {UNKNOWN} --snapshot stacks.txt").exit == 2
    assert run(f"trace {UNKNOWN} --snapshot /dev/null --flame /dev/null").exit == 0


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(process, "TemporaryFile", none)
    monkeypatch.setattr(process, "NEEDED", ())
    ran = run(f"trace {JOB}")
    assert (ran.exit, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: the trace needs a temporary file: No usable temporary directory found\n")


def test_all_files_that_cannot_be_written_are_said_at_once(pretended: type[Pretended]) -> None:
    ran = run(f"trace {UNKNOWN} --snapshot no/a --flame no/b")
    assert ran.stderr.count("error: ") == 2


# --- what is not traced -----------------------------------------------------------------------------------------------


def _errors(words: str) -> list[str]:
    ran = run(words)
    assert (ran.exit, ran.stdout) == (2, "")
    return re.findall(r"^error: (.*)$", ran.stderr, re.MULTILINE)


@pytest.mark.parametrize("verb", ["trace", "check --method trace"])
def test_everything_that_is_not_traced_is_said_at_once(pretended: type[Pretended], verb: str) -> None:
    """Also beside what is wrong with the job; nothing twice."""
    words = f"{verb} {JOB} --gpus 2 --set offload.optimizer=cpu"
    traced = ["gpus = 2 is not traced yet", "offload.optimizer = cpu is not traced yet"]
    assert _errors(words) == traced
    assert _errors(f"{words} --set quant.kind=gptq") == [
        "packed weights do not train: quant.kind = gptq with tuning = full", *traced,
    ]  # fmt: skip
    assert _errors(f"{words} --set micro_batch=0 --set lerning_rate=1")[-2:] == traced
    assert pretended.asked == []


def test_values_that_are_not_traced_name_those_that_are(pretended: type[Pretended]) -> None:
    ran = run(f"trace {JOB} --set algorithm=inference")
    assert "traced  sft, pretrain" in ran.stderr
    assert "use     vramcast check" in ran.stderr


def test_a_step_of_ones_own_hears_of_mistakes_too(pretended: type[Pretended]) -> None:
    assert len(_errors("trace --step train:step --gpu a100-sxm-80gb --set seq_length=1 --set micro_batch=0")) == 2


def test_schemas_need_no_torch() -> None:
    code = "import sys; from vramcast.report.schemas import schemas; schemas(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the real thing ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    pytest.importorskip("trl", reason="no step was run (extra `trace`)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        with Child() as child:
            child._started()
            yield child


@pytest.fixture
def shared(real: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use one process."""

    class Shared(Pretended):
        def record(self, question: Asked, tell: Tell = lambda progress: None) -> Recording:
            return real.record(question, tell)

    monkeypatch.setattr(process, "Child", Shared)


@pytest.mark.trace
def test_a_real_step_and_the_formulas_agree(shared: None) -> None:
    ran = run(f"trace {JOB}")
    assert (ran.exit, ran.stderr) == (0, "")
    assert ran.stdout.startswith("trace    FITS: 0.7")
    assert "peak     backward · " in ran.stdout
    weights = re.search(r"^    load · built +([\d.]+) +([\d.]+) ", ran.stdout, re.MULTILINE)
    assert weights
    assert weights[1] == weights[2] == "22.0"
    assert "traced with torch 2." in ran.stdout
    found = json.loads(run(f"trace {JOB} --json").stdout)
    schema("trace").validate(found)
    for row in found["instants"]:
        if row["formula"] is not None:
            assert row["trace"]["allocated_bytes"] == pytest.approx(row["formula"]["allocated_bytes"], rel=0.02)


@pytest.mark.trace
def test_a_forecast_by_trace_obeys_the_laws(shared: None) -> None:
    """And holds what `trace` says."""
    found = json.loads(run(f"check {JOB} --method trace --json").stdout)
    schema("check").validate(found)
    _obeys_the_laws(found)
    peak = json.loads(run(f"trace {JOB} --json").stdout)["peak"]
    assert found["peak"] == peak
    terms = {term["name"] for phase in found["groups"][0]["phases"] for term in phase["terms"]}
    assert terms >= {"weights", "gradients", "optimizer.state", "logits", "activations.saved", "cuda.context"}


@pytest.mark.trace
def test_files_of_a_real_step(shared: None) -> None:
    found = json.loads(run(f"trace {JOB} --json --flame peak.txt --snapshot peak.pickle").stdout)
    folded = [line.rpartition(" ") for line in Path("peak.txt").read_text().splitlines()]
    largest = max(row["trace"]["allocated_bytes"] for row in found["instants"])
    assert sum(int(size) for *_, size in folded) == pytest.approx(largest, rel=0.02)
    states = {stack.split(";")[0] for stack, _, _ in folded if stack.endswith("[state]")}
    assert states == {"model", "lm_head"}  # where the parameters are
    made = pickle.loads(Path("peak.pickle").read_bytes())
    assert len(made["device_traces"][0]) > found["events"] / 2


REMOTE = """
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

class MineConfig(Qwen3Config):
    model_type = "internlm2"

class Mine(Qwen3ForCausalLM):
    config_class = MineConfig

    def __init__(self, config):
        super().__init__(config)
        self.extra = torch.nn.Parameter(torch.zeros(1024, 1024))
"""


@pytest.mark.trace
def test_a_models_own_code_is_run_only_if_it_is_trusted(shared: None, workplace: Path) -> None:
    """Without trust Transformers' own class, if it has one of that type."""
    own = {"AutoConfig": "modeling_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.Mine"}
    job = JOB.replace("config.json", str(workplace))

    def built(words: str = "") -> int:
        (first, *_) = (
            row
            for row in json.loads(run(f"trace {job} --json {words}").stdout)["instants"]
            if row["instant"] == "built"
        )
        return first["trace"]["allocated_bytes"]

    Path("config.json").write_text(json.dumps(CONFIG | {"auto_map": own}))
    plain = built()
    ran = run(f"trace {job} --trust-remote-code")
    assert (ran.exit, ran.stdout) == (2, "")
    assert "own code is not beside its config.json" in ran.stderr
    Path("modeling_mine.py").write_text(REMOTE)
    assert built("--trust-remote-code") - plain == pytest.approx(4 * 1024 * 1024, abs=MIB)
    assert built() == plain
    Path("config.json").write_text(json.dumps(CONFIG | {"auto_map": own, "model_type": "internlm2"}))
    ran = run(f"trace {job}")
    assert (ran.exit, ran.stdout) == (2, "")
    assert ran.stderr == (
        "error: the installed Transformers does not know the model type 'internlm2'\n"
        "  use  --trust-remote-code: it brings its own code\n"
    )
    assert built("--trust-remote-code") > plain


@pytest.mark.trace
def test_a_step_of_ones_own_in_text_and_json(shared: None, workplace: Path) -> None:
    Path("mine.py").write_text(
        "import torch\n"
        "def build():\n"
        "    model = torch.nn.Linear(4096, 4096, bias=False, device='cuda')\n"
        "    optimizer = torch.optim.SGD(model.parameters())\n"
        "    def step():\n"
        "        model(torch.zeros(8, 4096, device='cuda')).sum().backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "    return step\n"
    )
    words = "trace --step mine:build --gpu a100-sxm-80gb"
    text = run(words)
    assert (text.exit, text.stderr) == (0, "")
    lines = text.stdout.splitlines()
    assert re.fullmatch(r"FITS: 0\.\d\d GiB of 79\.15 GiB on a100-sxm-80gb", lines[0])
    assert lines[1] == "step   mine:build"
    assert "  weights                             64.0" in lines
    found = json.loads(run(f"{words} --json").stdout)
    schema("trace --step").validate(found)
    assert (found["step"], found["gpu"], found["verdict"]) == ("mine:build", "a100-sxm-80gb", "fits")
    assert found["bytes"] == max(phase["bytes"] for phase in found["phases"]) < GIB
    assert {"name": "weights", "bytes": 64 * MIB} in found["peak_terms"]
