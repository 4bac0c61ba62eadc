"""The documents say what the code does: commands, output, file tree, recipes and the table of traces."""

import ast
import json
import re
import shlex
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest

from vramcast.algorithms import ALGORITHMS
from vramcast.catalog.gpus import Gpu
from vramcast.catalog.models import ModelRow, model_config
from vramcast.cli import _parser, main
from vramcast.estimate import forecast
from vramcast.models.arch import build_arch
from vramcast.types.job import Fact, Origin, Understanding, check_value

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "vramcast"
FILES = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "docs/traces.md", "docs/accuracy.md", "docs/limits.md")
README, CONTRIBUTING, ARCHITECTURE, TRACES, ACCURACY, LIMITS = (
    (ROOT / name).read_text(encoding="utf-8") for name in FILES
)
DOCUMENTS = dict(zip(FILES, (README, CONTRIBUTING, ARCHITECTURE, TRACES, ACCURACY, LIMITS), strict=True))


def _fences(text: str, language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [body for name, body in found if name == language]


def _section(text: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


def _commands(text: str) -> list[str]:
    return [line for block in _fences(text) for line in block.splitlines() if line.startswith("vramcast ")]


def _inline(text: str) -> list[str]:
    return re.findall(r"`(vramcast \w[^`\n]*)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def _sessions() -> list[tuple[str, list[str]]]:
    """(command, lines below it) of the README's blocks that show output."""
    texts = (README, ACCURACY)
    blocks = [block.splitlines() for text in texts for block in _fences(text) if block.startswith("$ ")]
    return [(lines[0].removeprefix("$ "), lines[1:]) for lines in blocks]


# --- commands ---------------------------------------------------------------------------------------------------------


def test_there_are_commands_to_check() -> None:
    assert len(_commands(README)) >= 10
    assert len(_sessions()) >= 2
    assert _inline(CONTRIBUTING)


@pytest.mark.parametrize("command", sorted({line for text in (README, CONTRIBUTING)
                                            for line in [*_commands(text), *_inline(text)]}))  # fmt: skip
def test_the_command_line_knows_it(command: str) -> None:
    try:
        _parser().parse_args(shlex.split(command, comments=True)[1:])
    except SystemExit as stopped:
        pytest.fail(f"`{command}` does not parse (exit {stopped.code})")


@pytest.mark.parametrize("command", _commands(README))
def test_it_runs(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert main(shlex.split(command, comments=True)[1:]) in (0, 1), capsys.readouterr().err
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(("command", "shown"), _sessions(), ids=[command for command, _ in _sessions()])
def test_the_output_is_what_it_prints_now(
    command: str, shown: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line by line; one `...` may stand for lines left out, between "assumed" and the lever only."""
    monkeypatch.chdir(ROOT)
    main(shlex.split(command)[1:])
    printed = "".join(capsys.readouterr()).rstrip().splitlines()
    gaps = [index for index, line in enumerate(shown) if line.strip() == "..."]
    if not gaps:
        assert shown == printed
        return
    (gap,) = gaps
    after = len(shown) - gap - 1
    assert shown[:gap] == printed[:gap]
    assert shown[gap + 1 :] == printed[-after:]
    left_out = printed[gap:-after]
    assert "assumed" in shown[:gap]
    assert left_out
    assert all(line.startswith("  ") for line in left_out), "only assumptions may be left out"


def test_the_accuracy_is_what_bench_prints_now(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["bench", "bench/runs", "--markdown"]) == 0
    assert capsys.readouterr().out.strip() in ACCURACY


def test_make_targets_exist() -> None:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    blocks = "\n".join(_fences(README))
    named = set(re.findall(r"`make (?:PYTHON=\S+ )?([a-z]+)`", README + CONTRIBUTING + ARCHITECTURE))
    named |= set(re.findall(r"^make ([a-z]+)", blocks, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named - known == set()


# --- files ------------------------------------------------------------------------------------------------------------


def test_the_tree_lists_every_folder() -> None:
    """A folder that is missing here needs a line in README, "The files"."""
    (block,) = (block for block in _fences(README) if block.startswith("src/vramcast/"))
    words = dict(re.findall(r"^  (\w+)/ +# (.+)$", block, re.MULTILINE))
    assert set(words) == {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 12_000


def test_five_files_to_read_first() -> None:
    section = _section(README, "Read these five files first")
    paths = re.findall(r"^\d\. \[.*?\]\((\S+?)\): \S", section, re.MULTILINE)
    assert len(paths) == 5
    assert [path for path in paths if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_files_and_links_exist(name: str) -> None:
    text = DOCUMENTS[name]
    start = (ROOT / name).parent
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if not (start / link).exists()] == []
    files = re.findall(r"`([\w./]+\.(?:py|jsonl?|toml|md|ya?ml|sh))`", text)
    bases = (ROOT, PACKAGE)
    gone = [file for file in files if not any((base / file).exists() for base in bases)]
    assert [file for file in gone if file != "config.json"] == []  # that one is a model's


def test_the_architecture_is_short() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 100


def test_what_is_modelled_is_said() -> None:
    table = _section(LIMITS, "What is modelled so far")
    assert [name for name in ALGORITHMS if f"`{name}`" not in table] == []


# --- recipes ----------------------------------------------------------------------------------------------------------


def _diffs() -> list[tuple[str, list[str]]]:
    """(file, lines with their sign) of CONTRIBUTING's diffs."""
    blocks = [block.splitlines() for block in _fences(CONTRIBUTING, "diff")]
    return [(lines[0].removeprefix("+++ "), lines[1:]) for lines in blocks]


def _added(file: str) -> list[str]:
    return [line[1:] for name, lines in _diffs() if name.endswith(file) for line in lines if line.startswith("+")]


def test_recipes_fit_the_files() -> None:
    """What a recipe shows as being there is there."""
    assert len(_diffs()) >= 8
    for file, lines in _diffs():
        kept = [line[1:] for line in lines if line.startswith((" ", "-"))]
        present = (ROOT / file).read_text(encoding="utf-8").splitlines() if kept else []
        assert [line for line in kept if line not in present] == [], file


def test_recipes_are_python() -> None:
    snippets = _fences(CONTRIBUTING, "python")
    for file, lines in _diffs():
        if file.endswith(".py"):
            hunk: list[str] = []
            for line in [*lines, " "]:
                if line.startswith("+"):
                    hunk.append(line[1:])
                elif hunk:
                    snippets.append("\n".join(hunk))
                    hunk = []
    assert len(snippets) >= 8
    assert [text for text in snippets if not _parses(dedent(text))] == []


def _parses(text: str) -> bool:
    for form in ("{}", "[{}\n]", "{{{}\n}}"):  # statements, or rows of a tuple or of a dict
        try:
            ast.parse(form.format(text))
        except SyntaxError:
            continue
        return True
    return False


def test_the_term_of_the_recipe_has_its_manual() -> None:
    (snippet,) = (text for text in _fences(CONTRIBUTING, "python") if text.startswith("@term"))
    (function,) = ast.parse(snippet).body
    assert isinstance(function, ast.FunctionDef)
    assert ast.get_docstring(function)


def test_the_gpu_of_the_recipe_is_a_row() -> None:
    (row,) = _added("gpus.json")
    gpu = msgspec.json.decode(row.rstrip(","), type=Gpu)
    assert gpu.total_bytes.value < gpu.smi_bytes.value
    assert all(figure.source for figure in (gpu.total_bytes, gpu.smi_bytes, gpu.context_bytes))


def test_the_model_of_the_recipe_is_a_row() -> None:
    (line,) = _added("models.jsonl")
    assert line.startswith('{"id":"')
    row = msgspec.json.decode(line, type=ModelRow)
    arch = build_arch(row.id, row.config, row.source)
    assert arch.layout.params == row.params


def test_the_facts_of_the_recipes_are_rows() -> None:
    """They are in the catalogue, word for word."""
    for file in ("dtypes.json", "optimizers.json", "overheads.json"):
        added = _added(file)
        assert added
        assert "\n".join(added) in (PACKAGE / "catalog" / file).read_text(encoding="utf-8")


def test_the_defaults_of_the_recipe_are_rows() -> None:
    for line in _added("trl.json"):
        assert json.loads(line.rstrip(","))["source"]


# --- traces -----------------------------------------------------------------------------------------------------------

WEIGHTS = {
    "bf16 weights": {"weights_dtype": "bf16", "autocast": "false"},
    "bf16 weights, bf16 autocast": {"weights_dtype": "bf16", "autocast": "true"},
    "fp32 weights, bf16 autocast": {"weights_dtype": "fp32", "autocast": "true"},
    "LoRA on bf16": {"weights_dtype": "bf16", "autocast": "false", "tuning": "lora"},
    "LoRA on bf16, bf16 autocast": {"weights_dtype": "bf16", "autocast": "true", "tuning": "lora"},
    "LoRA on fp32, bf16 autocast": {"weights_dtype": "fp32", "autocast": "true", "tuning": "lora"},
}
PACKED = {"nf4": {"quant.kind": "nf4"}, "nf4 double": {"quant.kind": "nf4", "quant.double": "true"},
          "int8": {"quant.kind": "int8"}}  # fmt: skip
PREPARED = {"weights_dtype": "bf16", "quant.rest_dtype": "fp32", "lora.dtype": "fp32"}
WEIGHTS |= {
    f"QLoRA, {kind} from {rest}": {**packed, **how, "tuning": "qlora"}
    for kind, packed in PACKED.items()
    for rest, how in {
        "bf16, bf16 autocast": {"weights_dtype": "bf16", "autocast": "true", "lora.dtype": "bf16"},
        "fp32, bf16 autocast": {"weights_dtype": "fp32", "autocast": "true", "lora.dtype": "bf16"},
        "bf16, the rest in fp32, bf16 autocast": {**PREPARED, "autocast": "true"},
        "bf16, the rest in fp32": {**PREPARED, "autocast": "false"},
    }.items()
}
COMMON = {
    "algorithm": "sft",
    "framework": "trl==1.16.0",
    "tuning": "full",
    "compute_dtype": "bf16",
    "accumulation": "1",
    "attention": "flash",
    "padding": "longest",
    "lora.rank": "16",
    "lora.targets": "all-linear",
    "lora.dropout": "0.05",
}
NOT_TRACED = ("weights", "adapters", "optimizer.state", "cublas.workspace", "allocator.rounding")


def _rows(text: str) -> list[tuple[str, ...]]:
    """Settings with sizes, MiB."""
    lines = [line for line in text.splitlines() if re.match(r"\| (bf16|fp32|LoRA|QLoRA)", line) and "%" not in line]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


@pytest.fixture(scope="module")
def three_layers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A config.json of Qwen2.5-7B with 3 layers."""
    file = tmp_path_factory.mktemp("model") / "config.json"
    file.write_text(json.dumps({**model_config("Qwen/Qwen2.5-7B").config, "num_hidden_layers": 3}), encoding="utf-8")
    return str(file)


def _peaks(setting: str, batch: str, model: str) -> tuple[str, str]:
    """(forward, backward) in MiB above the weights, as the package forecasts them."""
    weights, head, _ = re.split(r", (fused head|plain loss)", setting)
    sequences, tokens = batch.split(" × ")
    values = {
        **COMMON,
        **WEIGHTS[weights],
        "model": model,
        "gpu": "h100-sxm-80gb",
        "micro_batch": sequences,
        "seq_len": tokens,
        "loss": "fused" if head == "fused head" else "full",
        "recompute": "full" if setting.endswith("recompute") else "none",
        "recompute.reentrant": "true" if setting.endswith("reentrant recompute") else "false",
    }
    origin = Origin("test")
    facts = [Fact(path, check_value(path, raw, origin), origin) for path, raw in values.items()]
    peaks = {"forward": 0, "backward": 0}
    for phase in forecast(Understanding(facts)).groups[0].phases:
        side = "forward" if phase.name in ("forward", "loss") else phase.name
        if phase.when == "first" and side in peaks:
            terms = [term for term in phase.terms if term.counter == "allocated" and term.name not in NOT_TRACED]
            peaks[side] = max(peaks[side], sum(term.bytes for term in terms))
    return f"{peaks['forward'] / 2**20:.2f}", f"{peaks['backward'] / 2**20:.2f}"


@pytest.mark.parametrize(("setting", "batch", "recorded"), [(row[0], row[1], row[2:]) for row in _rows(TRACES)])
def test_traces(setting: str, batch: str, recorded: tuple[str, ...], three_layers: str) -> None:
    """Our columns are what the package computes, and near the recorded ones."""
    forward, ours_forward, backward, ours_backward = recorded
    assert (ours_forward, ours_backward) == _peaks(setting, batch, three_layers)
    for trace, ours in ((forward, ours_forward), (backward, ours_backward)):
        assert float(ours) == pytest.approx(float(trace), rel=0.00006)


def test_what_is_said_about_the_traces() -> None:
    rows = _rows(TRACES)
    assert len({row[:2] for row in rows}) == len(rows) == 116
    assert all(f"{len(rows)} settings" in text for text in (README, ACCURACY, TRACES))
    off = [max(abs(float(row[at + 1]) / float(row[at]) - 1) for at in (2, 4)) for row in rows]
    assert max(off) < 0.00006, "README: within 0.006 %"
    assert "within 0.006 %" in README


def test_the_readme_shows_rows_of_the_table() -> None:
    table = {(row[0], *row[2:]) for row in _rows(TRACES) if row[1] == "2 × 1024"}
    shown = _rows(ACCURACY)
    assert len(shown) == 8
    assert set(shown) <= table
