"""Launch scripts in bash, and lists of arguments in Python: the training command in them, and its reader."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from vramcast.errors import refuse
from vramcast.readers.bash.tree import LIMIT_BYTES
from vramcast.readers.bash.words import Gap, Word
from vramcast.readers.command import LOOKED_FOR, Launch, recognise
from vramcast.types.job import Fact, Origin, Understanding

_BASH = (".sh", ".bash", ".sbatch", ".slurm")
_CONFIGURATIONS = (".yaml", ".yml", ".json", ".toml")
_COMMAND = re.compile(
    r"^[ \t]*(?:(?:export[ \t]+)?\w+=\S*[ \t]+)*"
    r"(?:python3?|torchrun|accelerate|deepspeed|trl|ray|nohup|srun|export|set|bash)[ \t]+[\w./@-]+",
    re.MULTILINE,
)
_OVERRIDE = re.compile(r"[+~]{0,2}[a-z_]\w*(?:\.\w+)+=.*", re.DOTALL)
_CHORES = frozenset(
    "alias cat cd chmod command cp date declare echo exec exit export grep hostname kill local ls mkdir module mv popd "
    "printf pushd pwd read readonly return rm sed set shift sleep source tee test trap true ulimit unset wait "
    ". : [".split()
)
_MOST_STARTS = 8
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def is_script(name: str, text: str) -> bool:
    """Whether a file is a script, by its ending or, without one that says otherwise, by its text."""
    ending = name.lower()
    if ending.endswith((*_BASH, ".py")):
        return True
    if ending.endswith(_CONFIGURATIONS):
        return False
    return text.startswith("#!") or is_list(text) or bool(_COMMAND.search(text))


def is_list(text: str) -> bool:
    """Whether the text is a list of overrides, as pasted from Python."""
    return text.lstrip().startswith("[") and bool(re.search(r"""['"][+~]{0,2}[a-z_]\w*(?:\.\w+)+=""", text))


def read_script(name: str, text: str, folder: str) -> Understanding:
    """The facts of a script's training command; `folder` is where files that it names may stand.

    Raises:
        Refused: no training command, one of a framework that is not read, or wrong values.
    """
    if name.lower().endswith(".py") or is_list(text):
        return _python(name, text, folder)
    from vramcast.readers.bash.script import commands_of

    starts: dict[str, None] = {}

    def look(words: list[Word]) -> Launch | None:
        starts.setdefault(_start(words))
        return recognise(words)

    found = commands_of(text, name, look)
    if not found:
        starts.pop("", None)
        raise refuse(
            f"{name} has no training command",
            **{
                "it starts": ", ".join([*starts][-_MOST_STARTS:]),
                "looked for": LOOKED_FOR,
                "help": "nothing is executed",
            },
        )
    launch, command = min(found, key=lambda each: _rank(each[0]))
    others = [f"{name}:{other.line}: this training command is not read" for _, other in found if other is not command]
    beside = Understanding([], warnings=[*command.warnings, *others])
    variables = Understanding(_environment(command.environment, name))
    return beside + _read(launch, name, command.environment, folder) + variables


def _rank(launch: Launch) -> int:
    """Training comes before the steps that prepare it: a trainer that is read, one that is known by name, then scripts,
    those with a trainer's arguments first."""
    if launch.kind in ("verl", "trl"):
        return 0
    if launch.kind != "script":
        return 2
    from vramcast.readers.frameworks.trl.command import trains

    return 1 if trains(launch) else 3


def _start(words: Sequence[Word]) -> str:
    """What a command starts, in a few words: `python -m recipe.main`; empty for the chores of a shell."""
    if not words or words[0].text in _CHORES:
        return ""
    at = next((i for i, word in enumerate(words[1:], 1) if word.text and not word.text.startswith("-")), 0)
    return " ".join(word.text[:60] for word in words[: min(at, _MOST_STARTS) + 1])


def _read(launch: Launch, name: str, environment: Mapping[str, Word], folder: str) -> Understanding:
    if launch.kind == "verl":
        from vramcast.readers.frameworks.verl.reader import read_verl

        return read_verl(launch.arguments, name, environment)
    if launch.kind in ("trl", "script"):
        from vramcast.readers.frameworks.trl.command import read_trl_command

        return read_trl_command(launch, name, folder)
    raise refuse(f"{name}:{launch.line} starts {launch.kind}, which is not read yet", read=LOOKED_FOR)


def _environment(variables: Mapping[str, Word], name: str) -> list[Fact]:
    """Variables that change memory; a list of visible GPUs counts where nothing else says how many."""
    facts: list[Fact] = []
    for variable, word in variables.items():
        origin = Origin(f"{name}:{word.line}", variable)
        if variable in _ALLOCATOR and not word.gaps:
            facts.append(Fact("allocator", word.text, origin))
        cards = [card for card in word.text.split(",") if card.strip() not in ("", "-1")]
        if variable == "CUDA_VISIBLE_DEVICES" and cards and not word.gaps:
            facts.append(Fact("gpus", len(cards), origin))
    return facts


def _python(name: str, text: str, folder: str) -> Understanding:
    """The first list of overrides, or of a command's words, in Python text."""
    if len(text) > LIMIT_BYTES:
        raise refuse(f"{name} is larger than {LIMIT_BYTES >> 10} KiB: not a launch script")
    try:
        tree = ast.parse(text.strip() if is_list(text) else text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise refuse(f"{name} is not Python: {getattr(error, 'msg', error)}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            words = [_word(item, text) for item in node.elts]
            launch = recognise(words)
            if launch:
                return _read(launch, name, {}, folder)
            if _are_overrides(words):
                from vramcast.readers.frameworks.verl.reader import read_verl

                return read_verl(words, name)
    raise refuse(
        f"{name} has no list of overrides key=value, and no training command in a list",
        help="nothing is executed: paste the list of arguments, or the script that is run",
    )


def _word(item: ast.expr, text: str) -> Word:
    """A string of a list; what stands in its place otherwise is not known."""
    match item:
        case ast.Constant(value=str(value)):
            return Word(value, item.lineno)
        case ast.JoinedStr(values=parts):
            plain = "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
            inner = [part for part in parts if isinstance(part, ast.FormattedValue)]
            gaps = [Gap(ast.unparse(part.value), "is not executed", item.lineno) for part in inner]
            return Word(plain, item.lineno, tuple(gaps))
        case _:
            return Word("", item.lineno, (Gap(ast.unparse(item), "is not executed", item.lineno),))


def _are_overrides(words: Sequence[Word]) -> bool:
    return any(_OVERRIDE.fullmatch(word.text) for word in words)
