"""Bash is read, never run: variables, arithmetic, arrays, continuations; and the training command among the others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.errors import Refused
from vramcast.readers.launch import recognise
from vramcast.readers.shell import Command, commands_of
from vramcast.readers.shell_words import Gap, Word, evaluate


def run(text: str) -> Command:
    """The first command named `run`."""
    return commands_of(text, "x.sh", lambda words: True if words and words[0].text == "run" else None)[0][1]


def words(text: str) -> list[str]:
    return [word.text for word in run(text).words[1:]]


def why(text: str) -> list[str]:
    """The gaps of the command's words."""
    return [f"{gap.name} {gap.why}:{gap.line}" for word in run(text).words for gap in word.gaps]


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("run a=1 b=2", ["a=1", "b=2"]),
        ("run a=1 \\\n  b=2 # c=3", ["a=1", "b=2"]),
        ("A=1\nB=$A$A\nrun x=$B y=${A}0", ["x=11", "y=10"]),
        ("export A=1 B='x y'\nrun \"$B\" $B", ["x y", "x", "y"]),
        ("run ${A:-8} ${A-} \"${A:-}\" ${A:-'x y'}", ["8", "", "x", "y"]),
        ("A=\nrun x=${A:-8} y=${A-8} z=${A:+set}", ["x=8", "y=", "z="]),
        (': "${A:=7}"\nrun $A', ["7"]),
        ("A=2048\nrun n=$((A+8192)) m=$(( $A * (3 - 1) / 3 % 1000 )) k=$((-3 + 0x10))", ["n=10240", "m=365", "k=13"]),
        ('A=(x "a b" n=1) # c\nA+=(z)\nrun "${A[@]}" ${A[1]} "${A[0]}"', ["x", "a b", "n=1", "z", "a", "b", "x"]),
        ('run a "$@" $@ ${@} b', ["a", "b"]),
        ('run \'a$B\' a\\ b "q\\"r" $\'x\\ty\' l=\'["a","b"]\'', ["a$B", "a b", 'q"r', "x\ty", 'l=["a","b"]']),
        ('A=a\nrun "  $A  ${A} - "', ["  a  a - "]),
        ("A=x\nA+=y\nrun $A", ["xy"]),
        ("A=1 B=2\nC=3 D=4\nrun $A$B$C$D", ["1234"]),
        ("cd /tmp && A=1\nrun $A > log 2>&1 | tee out", ["1"]),
        ("f() {\n  A=1\n  run $A\n}\nf", ["1"]),
        ("A=8\nread -r -d '' REST <<EOF\n--n $A \\\n  --m 2\nEOF\nrun $REST", ["--n", "8", "--m", "2"]),
        ("read REST <<'EOF'\n--n $A\nEOF\nrun $REST", ["--n", "$A"]),
        ("run $HOME/m", ["~/m"]),
        ("if true; then\n  run a\nfi", ["a"]),
    ],
)
def test_words(script: str, wanted: list[str]):
    assert words(script) == wanted


@pytest.mark.parametrize(
    ("script", "gaps"),
    [
        ("run x=$A", ["$A is not set in the script:1"]),
        ("B=$A\nrun \\\n  x=$B y=$((B * 2))", ["$A is not set in the script:1", "$A is not set in the script:1"]),
        ("run x=$(nproc) `ls`", ["$(nproc) is not executed:1", "`ls` is not executed:1"]),
        ("if [ $X ]; then A=1; fi\nrun $A", ["$A is set only under a condition (line 1):1"]),
        ("[ -z \"$A\" ] && A=1\nrun $A", ["$A is set only under a condition (line 1):1"]),
        ("for i in 1 2; do\n run $i\ndone", ["$i changes in a loop:1"]),
        ("A=abc\nrun ${A%c} ${#A}", ["${A%c} is an expansion that is not read:2",
                                     "${#A} is an expansion that is not read:2"]),
        ("A=abc\nrun ${!A}", ["${!A} is an expansion that is not read:2"]),
        ("A=x\nrun $((A + 1)) $((1 / 0))", ["$((A + 1)) is no arithmetic of whole numbers:2",
                                            "$((1 / 0)) is no arithmetic of whole numbers:2"]),
        ("run ${A:?set it}", ["$A is not set in the script:1"]),
        ("run $1 n=$2", ["$1 is not set in the script:1", "$2 is not set in the script:1"]),
    ],
)  # fmt: skip
def test_what_is_not_known_is_a_gap(script: str, gaps: list[str]):
    assert why(script) == gaps


def test_lines_are_those_of_the_text():
    command = run('A=(\n  x=1\n  y=2\n)\nrun \\\n  a=1 \\\n  "${A[@]}" b=2')
    assert [(word.text, word.line) for word in command.words] == [
        ("run", 5), ("a=1", 6), ("x=1", 2), ("y=2", 3), ("b=2", 7),
    ]  # fmt: skip


def test_exported_variables():
    command = run("A=1\nexport B=2 C\nC=3\nexport A\nD=4 run x")
    assert {name: word.text for name, word in command.environment.items()} == {"A": "1", "B": "2", "C": "3", "D": "4"}


@pytest.mark.parametrize(
    ("script", "warning"),
    [
        ("run a=1 \\\n  # a remark\n  b=2", "x.sh:2: a comment ends the command: the arguments from line 3 on"),
        ("run a=1 \\\n  b=2 \\ # remark\n  --c 3", "x.sh:2: a comment ends the command: the arguments from line 3 on"),
        ("run a=1 \\ \n  b=2", "x.sh:1: a blank after the backslash ends the command: the arguments from line 2 on"),
    ],
)
def test_a_command_that_ends_too_early(script: str, warning: str):
    assert run(script).warnings == [f"{warning} do not belong to it"]


@pytest.mark.parametrize("script", ["run a=1 \\\n  # the last\n", "run a=1 # remark\nls b=2", "run a=1\n# x\nb=2"])
def test_a_remark_that_ends_nothing(script: str):
    assert run(script).warnings == []


def test_a_value_that_a_condition_changes_is_said():
    assert run("N=8\nif [ $DEBUG ]; then N=1; fi\nrun $N").warnings == [
        "x.sh:2: N is set under a condition as well: the value before it is taken"
    ]


def test_broken_bash_is_refused():
    with pytest.raises(Refused, match=r"x\.sh:2: this command is not bash that can be read"):
        run('A=1\nrun a="1 b\n')


def test_deep_nesting_is_refused():
    with pytest.raises(Refused, match=r"x\.sh is nested too deeply"):
        run("run " + "$(" * 3000 + "a" + ")" * 3000)


@pytest.mark.parametrize("text", ["2**9", "1 and 2", "x", "'a'", "True", "f()", "1.5", "1" * 501, "(1", ""])
def test_only_arithmetic_of_whole_numbers(text: str):
    with pytest.raises(ValueError, match=r".*"):
        evaluate(text)


@pytest.mark.parametrize(("text", "value"), [("7/2", 3), ("-7/2", -3), ("-7%2", -1), ("2*(3+4)", 14), ("--3", 3)])
def test_arithmetic_is_that_of_bash(text: str, value: int):
    assert evaluate(text) == value


@pytest.mark.parametrize(
    ("line", "kind", "program", "options", "arguments"),
    [
        ("python3 -m verl.trainer.main_ppo a=1", "verl", "verl.trainer.main_ppo", "", "a=1"),
        ("/usr/bin/python3.11 -u -X dev -m verl.trainer.main_ppo", "verl", "verl.trainer.main_ppo", "", ""),
        ("python -m recipe.dapo.main_dapo a=1", "verl", "recipe.dapo.main_dapo", "", "a=1"),
        ("python verl/trainer/main_ppo.py a=1", "verl", "verl/trainer/main_ppo.py", "", "a=1"),
        ("$PYTHON -m verl.trainer.main_ppo a=1", "verl", "verl.trainer.main_ppo", "", "a=1"),
        ("nohup python3 -m verl.trainer.main_ppo a=1", "verl", "verl.trainer.main_ppo", "", "a=1"),
        ("ray job submit --no-wait -- A=1 python3 -m verl.trainer.main_ppo a", "verl", "verl.trainer.main_ppo",
         "", "a"),
        ("srun -N 2 --gpus 8 trl sft --x 1", "trl", "trl sft", "", "--x 1"),
        ("trl grpo --config g.yaml", "trl", "trl grpo", "", "--config g.yaml"),
        ("accelerate launch --num_processes 4 --use_fsdp sft.py --x", "trl", "sft.py",
         "--num_processes 4 --use_fsdp", "--x"),
        ("accelerate launch --config_file=a.yaml -m trl.scripts.dpo --x", "trl", "trl.scripts.dpo",
         "--config_file=a.yaml -m", "--x"),
        ("torchrun --standalone --nproc_per_node 8 train.py --x 1", "script", "train.py",
         "--standalone --nproc_per_node 8", "--x 1"),
        ("python -m torch.distributed.run --nproc-per-node=8 train.py", "script", "train.py", "--nproc-per-node=8", ""),
        ("deepspeed --num_gpus 8 grpo.py --x", "trl", "grpo.py", "--num_gpus 8", "--x"),
        ("deepspeed --module openrlhf.cli.train_sft --x", "OpenRLHF", "openrlhf.cli.train_sft", "--module", "--x"),
        ("llamafactory-cli train x.yaml", "LLaMA-Factory", "llamafactory-cli", "", "train x.yaml"),
        ("python train.py --model_name_or_path m", "script", "train.py", "", "--model_name_or_path m"),
        ("python -m verl.trainer.fsdp_sft_trainer a=1", "verl's SFT trainer", "verl.trainer.fsdp_sft_trainer",
         "", "a=1"),
    ],
)  # fmt: skip
def test_training_commands(line: str, kind: str, program: str, options: str, arguments: str):
    unknown = (Gap("$PYTHON", "is not set", 3),)
    launch = recognise([Word("", 3, unknown) if text == "$PYTHON" else Word(text, 3) for text in line.split()])
    assert launch is not None
    assert (launch.kind, launch.program) == (kind, program)
    assert " ".join(word.text for word in launch.options) == options
    assert " ".join(word.text for word in launch.arguments) == arguments
    assert launch.line == 3


@pytest.mark.parametrize(
    "line", ["", "echo python", "pip install trl", "python prepare.py --out x", "python -m pip install verl", "set -x",
             "python -c print()", "python", "accelerate config", "torchrun --nproc_per_node 8", "hf download m"]
)  # fmt: skip
def test_other_commands(line: str):
    assert recognise([Word(text, 1) for text in line.split()]) is None


def test_nothing_is_executed(tmp_path: Path):
    script = tmp_path / "run.sh"
    at = str(tmp_path)
    script.write_text(f"touch {at}/a\nA=$(touch {at}/b)\n`touch {at}/c`\nrun x=$(touch {at}/d)\n")
    commands_of(script.read_text(), "run.sh", lambda words: True)
    assert os.listdir(tmp_path) == ["run.sh"]


def test_what_a_script_does_not_need_is_not_imported():
    code = (
        "import sys, vramcast.readers, vramcast.readers.detect\n"
        "print([name for name in ('yaml', 'omegaconf', 'tree_sitter', 'numpy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
