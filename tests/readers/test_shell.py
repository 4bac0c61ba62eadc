"""Bash is read, never run: variables, arithmetic, arrays, continuations; and the training command among the others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vramcast.errors import Refused
from vramcast.readers.bash.arithmetic import evaluate
from vramcast.readers.bash.script import Command, commands_of
from vramcast.readers.bash.words import Gap, Word
from vramcast.readers.command import recognise


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
        ('run x=${A:-$((512 * 2))} "${A:-$((1024*8))}"', ["x=1024", "8192"]),
        ("a=1; b=2\nA=${L:-$(((a + b) * 2))}\nrun $A ${L:-$(( ${a:-7} * $b ))}", ["6", "2"]),
        ("X=v\nrun d=$HOME/c-$X/rl.parquet [$X/b {$X,2} '[$X/b'", ["d=~/c-v/rl.parquet", "[v/b", "{v,2}", "[$X/b"]),
        ("run $PWD/ckpt", ["./ckpt"]),
        ("A=(x y)\nA[1]=z\nA[2]=w\nrun ${A[@]}", ["x", "z", "w"]),
        ("a[z-a]=1\nif ls; then a[z-a]=2; fi\nrun b", ["b"]),
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
        ("if [ -f x ]; then A=1; fi\nrun $A", ["$A is set only under a condition (line 1):1"]),
        ("[ \"$1\" = a ] && A=1\nrun $A", ["$A is set only under a condition (line 1):1"]),
        ("A=${B:-}\nif ls; then A=1; fi\nrun tp=$A x", ["$A is set only under a condition (line 2):2"]),
        ("A=${B:-}\nrun tp=$A \"n=${A}\" $A", ["$A is empty:2", "$A is empty:2"]),
        ("run ${A:-$((2 * B))}", ["$B is not set in the script:1"]),
        ("A=([x]=1)\nA[y]=2\nrun ${A[0]}", ["$A has an element A[y]:2"]),
        ("A[1]=2\nrun ${A[\u00b2]}", ["A[\u00b2] is an expansion that is not read:2"]),
        ("for i in 1 2; do\n run $i\ndone", ["$i changes in a loop:1"]),
        ("A=abc\nrun ${A%c} ${#A}", ["${A%c} is an expansion that is not read:2",
                                     "${#A} is an expansion that is not read:2"]),
        ("A=abc\nrun ${!A}", ["${!A} is an expansion that is not read:2"]),
        ("A=1.5\nrun $((A + 1)) $((1 / 0))", ["$((A + 1)) is no arithmetic of whole numbers:2",
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
    assert run("N=8\nif [ -d x ]; then N=1; fi\nrun $N").warnings == [
        "x.sh:2: N is set under a condition as well: the value before it is taken"
    ]


def test_broken_bash_is_refused():
    with pytest.raises(Refused, match=r"x\.sh:2: this command is not bash that can be read"):
        run('A=1\nrun a="1 b\n')


def test_deep_nesting_is_refused():
    with pytest.raises(Refused, match=r"x\.sh is nested too deeply"):
        run("(" * 3000 + "run a" + ")" * 3000)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('[ "$D" = npu ]', True),
        ("[ x = y ]", False),
        ("[ $N -gt 7 ]", True),
        ('[ -n "$D" ]', True),
        ('[ -z "${X:-}" ]', True),
        ("[ -z $X ]", True),
        ("! [ $D == gpu ]", True),
        ("[[ $D == n* && ( $N -eq 3 || ! -z $D ) ]]", True),
        ("[[ $D != n* ]]", False),
        ("(( N > 1 && N % 2 == 0 ))", True),
        ("[ $D = x ] || [ $N = 8 ]", True),
        ("true && false", False),
    ],
)
def test_conditions_that_the_script_decides(condition: str, holds: bool):
    script = f"D=npu N=8 A=none\nif {condition}; then\n  A=yes\nelse\n  A=no\nfi\nrun $A"
    assert words(script) == ["yes" if holds else "no"]
    assert run(script).warnings == []


@pytest.mark.parametrize(
    "condition", ["[ -f x ]", "[ $1 = a ]", "[[ $D =~ ^n ]]", "[ $(nproc) -gt 1 ]", "[ $D -gt 1 ]", "ls"]
)
def test_conditions_that_only_a_run_decides(condition: str):
    assert "x.sh:2: A is set under a condition" in run(f"D=npu A=1\nif {condition}; then A=2; fi\nrun $A").warnings[0]


def test_of_a_case_the_item_that_matches_is_read():
    script = "D=${D:-gpu}\ncase $D in\n npu) A=1 ;;\n g*|cuda) A=2 ;;\n *) A=3 ;;\nesac\nrun $A"
    assert words(script) == ["2"]
    assert words(script.replace("${D:-gpu}", "tpu")) == ["3"]
    assert why(script.replace("${D:-gpu}", "$1")) == ["$A is set only under a condition (line 2):2"]


def test_branches_do_not_see_each_other():
    assert words("if ls; then A=1; else run x$A; fi") == ["x"]


@pytest.mark.parametrize(
    ("script", "wanted", "line"),
    [
        ('A=4\nexport A\nsrun -N1 bash -lc "\ncd x\nrun n=$A"', ["n=4"], 5),
        ("export A=4\nbash -c 'run n=$A'", ["n=4"], 2),
        ("A=4\nbash -c 'run n=$A'", ["n="], 2),
        ("C=\"run 'a b' c\"\neval $C", ["a b", "c"], 2),
        ("A=3\nsbatch <<EOF\n#!/bin/bash\nrun n=$A\nEOF", ["n=3"], 4),
        ("cat > job.sh <<'EOF'\nN=2\nrun n=$N\nEOF\nsbatch job.sh", ["n=2"], 3),
        ("docker run img bash -c 'cd /x && run y'", ["y"], 1),
    ],
)
def test_scripts_inside_a_script(script: str, wanted: list[str], line: int):
    assert words(script) == wanted
    assert run(script).line == line


def test_a_value_that_grows_without_end_is_a_gap():
    grown = "A=xx\n" + 'A="$A$A"\n' * 40
    assert why(grown + "run b=$A") == ["$A is longer than 64 KiB:17"]
    assert why("A=(x y)\n" + 'A+=("${A[@]}")\n' * 40 + "run ${A[0]}") == ["$A has more than 4,096 elements:13"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("A=" + "x" * 60000 + "\n" + "ls $A\n" * 100, "line 71: the variables expand to more than 4 MB of text"),
        ("run a\n" * 51, "has more than 50 training commands"),
        ("eval a\n" * 21, "has more than 20 scripts inside it"),
        ("# " + "x" * 2**17, "is larger than 128 KiB: not a launch script"),
        ("eval 'eval \"eval " + "eval " * 30 + "x\"'", "has more than 20 scripts inside it"),
    ],
)
def test_scripts_have_bounds(script: str, message: str):
    with pytest.raises(Refused, match=message):
        commands_of(script, "x.sh", lambda words: words[0].text == "run" or None if words else None)


VALUES = {"a": "3", "b": "2", "e": "a + 1", "none": "", "loop": "loop"}


@pytest.mark.parametrize(
    "text",
    [
        "1 and 2",
        "'a'",
        "f()",
        "1.5",
        "1" * 501,
        "(1",
        "",
        "1 ? 2",
        "08",
        "2**64",
        "2**-1",
        "1 << 64",
        "9#9",
        "99#1",
        "loop",
        "a = 3",
        "a++",
        "9223372036854775807 + 1",
        "-" * 400 + "1",
        "(" * 200 + "1" + ")" * 200,
        "1 / 0",
        "4 % (a - 3)",
    ],
)
def test_only_arithmetic_of_whole_numbers(text: str):
    with pytest.raises(ValueError, match=r".*"):
        evaluate(text, lambda name: VALUES.get(name, "x y"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7/2", 3),
        ("-7/2", -3),
        ("-7%2", -1),
        ("2*(3+4)", 14),
        ("--3", 3),
        ("-2**2", 4),
        ("2**3**2", 512),
        ("1<<4>>1", 8),
        ("a*b+e", 10),
        ("e*2", 8),
        ("a>b ? a : 1/0", 3),
        ("a<b && 1/0", 0),
        ("a>b || 1/0", 1),
        ("!a + ~b", -3),
        ("none + 1", 1),
        ("0x10 + 010 + 2#101", 29),
        ("7 & 3 | 8 ^ 1", 11),
        ("(a == 3) + (b != 3) + (a <= b)", 2),
        ("1 ? 2 : 0 ? 3 : 4", 2),
    ],
)
def test_arithmetic_is_that_of_bash(text: str, value: int):
    assert evaluate(text, VALUES.__getitem__) == value
    shell = subprocess.run(
        ["bash", "-c", f"a=3 b=2 e='a + 1' none=; echo $(({text}))"], capture_output=True, check=True
    )
    assert int(shell.stdout) == value


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
