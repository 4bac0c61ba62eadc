"""A bash launch script, read without executing anything: its variables, and the words of its commands.

Assignments count in the order in which they stand. Of branches whose conditions the script decides itself, the one
that runs is read. An assignment that only some runs reach (in another branch, a loop, a function) leaves its variable
unknown to what follows, unless it had a value before.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Protocol, TypeVar

from vramcast.errors import refuse
from vramcast.readers.bash.conditions import decide, matches
from vramcast.readers.bash.tree import LIMIT_BYTES, TooLong, parsed
from vramcast.readers.bash.words import LONGEST_VALUE, Raw, Variable, Word, Words, first_gap, line_of

_BRANCHES = frozenset("for_statement c_style_for_statement while_statement function_definition".split())
_SHELLS = frozenset(("bash", "sh", "zsh"))
_RUN_HERE = _SHELLS | {"sbatch", "ssh"}
_SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm")
_USED = re.compile(r"\$\{?(\w+)")
_CUT_SHORT = re.compile(
    rb"[ \t]*\\(?:[ \t]+(?P<late>#)|[ \t]+(?P<blank>)\r?\n|\r?\n[ \t]*(?P<line>#[^\n]*\n))\s*", re.ASCII
)
_ARGUMENT = re.compile(rb"[ \t]*(?:--?[\w-]|[+~]{0,2}[A-Za-z_][\w.]*=)", re.ASCII)
_MOST_COMMANDS = 50
"""Training commands of one script."""
_MOST_ELEMENTS = 4096
_MOST_INNER = 20
"""Scripts inside a script."""

Found = TypeVar("Found", covariant=True)


class Command(NamedTuple):
    """One command with its expanded words, the variables exported to it, and what is odd about how it is written."""

    words: list[Word]
    environment: dict[str, Word]
    warnings: list[str]

    @property
    def line(self) -> int:
        return self.words[0].line


class Recognise(Protocol[Found]):
    """What a command is, or None if it is not one that is looked for."""

    def __call__(self, words: list[Word]) -> Found | None: ...


def commands_of(text: str, name: str, recognise: Recognise[Found]) -> list[tuple[Found, Command]]:
    """The commands of a script that `recognise` knows, in their order; `name` is the script in messages.

    Raises:
        Refused: a command that is looked for stands where the text is not bash, the text is nested too deeply, or it
            is larger than any launch script.
    """
    if len(text) > LIMIT_BYTES:
        raise refuse(f"{name} is larger than {LIMIT_BYTES >> 10} KiB: not a launch script")
    try:
        source, root = parsed(text)
        walk = _Walk(Words(source), name, recognise)
        walk.visit(root)
    except RecursionError:
        raise refuse(f"{name} is nested too deeply") from None
    except TooLong as error:
        raise refuse(f"{name}: {error}") from None
    return walk.found


class _Walk:
    """One pass over the nodes of a script, in order."""

    def __init__(self, words: Words, name: str, recognise: Recognise[Any]) -> None:
        self.words = words
        self.name = name
        self.recognise = recognise
        self.exported: set[str] = set()
        self.found: list[tuple[Any, Command]] = []
        self.also_set: dict[str, int] = {}
        self.inner = 0
        self.grown: set[str] = set()
        """variables that are too long to be known"""

    def visit(self, node: Any) -> None:
        match node.type:
            case "variable_assignment":
                self.assign(node)
            case "declaration_command":
                self.declare(node)
            case "command":
                self.command(node)
            case "redirected_statement":
                self.children(node)
                self.here(node)
            case "list":
                self.chain(node)
            case "if_statement":
                self.choice(node)
            case "case_statement":
                self.cases(node)
            case kind if kind in _BRANCHES:
                self.branch(node, node.named_children)
            case _:
                self.children(node)

    def children(self, node: Any) -> None:
        for child in node.named_children:
            self.visit(child)

    def assign(self, node: Any) -> None:
        """`A=1`, `A+=1`, `A=(x y)`, `A+=(z)`."""
        target, operator, *value = node.children
        line = line_of(node)
        if value and value[0].type == "array":
            items = [child for child in value[0].named_children if child.type != "comment"]
            new = Variable([raw for item in items for raw in self.words.fields(item)], is_array=True)
        else:
            new = Variable([Raw(self.words.text(value[0]) if value else "", line)])
        if target.type == "subscript":
            self.assign_element(self.words.source_of(target), new, line)
        else:
            self.put(self.words.source_of(target), new, line, append=self.words.source_of(operator) == "+=")

    def put(self, name: str, new: Variable, line: int, append: bool = False) -> None:
        old = self.words.variables.get(name)
        if old and append:
            if name in self.grown:
                return
            new = _appended(old, new)
        self.grown.discard(name)
        many = len(new.words) > _MOST_ELEMENTS
        if many or sum(len(raw.text) for raw in new.words) > LONGEST_VALUE:
            why = f"has more than {_MOST_ELEMENTS:,} elements" if many else f"is longer than {LONGEST_VALUE >> 10} KiB"
            gap = first_gap("".join(raw.text for raw in new.words)) or self.words.gap(f"${name}", why, line)
            new = Variable([Raw(gap, line)], new.is_array)
            self.grown.add(name)
        self.words.put(name, new)

    def assign_element(self, target: str, new: Variable, line: int) -> None:
        """`A[1]=x`: the element, if it is the next one or one that there is; of another array nothing is known."""
        name, _, index = target.rstrip("]").partition("[")
        old = self.words.variables.get(name, Variable([], is_array=True)).words
        at = int(index) if re.fullmatch(r"[0-9]{1,4}", index, re.ASCII) else len(old) + 1
        if at > len(old):
            self.put(name, Variable([Raw(self.words.gap(f"${name}", f"has an element {target}", line), line)]), line)
        else:
            self.put(name, Variable([*old[:at], *new.words[:1], *old[at + 1 :]], is_array=True), line)

    def declare(self, node: Any) -> None:
        """`export A=1 B`, `declare -x A=1`, `local A=1`, `readonly A=1`."""
        exports = self.words.source_of(node.children[0]) == "export" or "-x" in self.words.source_of(node).split()
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assign(child)
            if exports and child.type in ("variable_assignment", "variable_name"):
                self.exported.add(self.words.source_of(child).partition("=")[0])

    def command(self, node: Any) -> None:
        parts = node.named_children
        for child in parts:
            if child.type == "variable_assignment":
                self.assign(child)
                self.exported.add(self.words.source_of(child.children[0]))
        arguments = [part for part in parts if part.type not in ("variable_assignment", "file_redirect", "comment")]
        nodes = [part.children[0] if part.type == "command_name" and part.children else part for part in arguments]
        raws = [raw for part in nodes for raw in self.words.fields(part)]
        self.hand_on(raws)
        words = [self.words.finished(raw) for raw in raws]
        what = self.recognise(words)
        if what is None:
            return
        if node.has_error:
            raise refuse(f"{self.name}:{line_of(node)}: this command is not bash that can be read")
        if len(self.found) == _MOST_COMMANDS:
            raise refuse(f"{self.name} has more than {_MOST_COMMANDS} training commands")
        self.found.append((what, Command(words, self.environment(), [*self.doubts(node), *self.cut_short(node)])))

    def hand_on(self, raws: list[Raw]) -> None:
        """`bash -c TEXT` and `eval TEXT`: what they run is a script of its own."""
        plain = [raw.text.rpartition("/")[2] for raw in raws]
        if plain[:1] == ["eval"] and len(raws) > 1:
            self.script(" ".join(raw.text for raw in raws[1:]), raws[1].line, self.words.variables)
        at = next((i for i, text in enumerate(plain) if text in _SHELLS), len(raws))
        rest = raws[at + 1 :]
        options = next((i for i, raw in enumerate(rest) if not raw.text.startswith("-")), len(rest))
        if options < len(rest) and any("c" in raw.text and raw.text[1:2] != "-" for raw in rest[:options]):
            self.script(rest[options].text, rest[options].line)

    def script(self, text: str, line: int, variables: dict[str, Variable] | None = None) -> None:
        """Read a script inside this one; without `variables` it knows those that are exported."""
        self.inner += 1
        if self.inner > _MOST_INNER:
            raise refuse(f"{self.name} has more than {_MOST_INNER} scripts inside it")
        source, root = parsed("\n" * (line - 1) + text)
        walk = _Walk(Words(source), self.name, self.recognise)
        walk.words.gaps, walk.words.expanded = self.words.gaps, self.words.expanded
        known = {**walk.words.variables, **{name: self.words.variables[name] for name in self.known_exports()}}
        if variables is None:
            walk.words.variables = known
        else:
            walk.words.variables, walk.words.undo = variables, self.words.undo
        walk.exported, walk.found, walk.inner = {*self.exported}, self.found, self.inner
        walk.visit(root)
        self.inner, self.words.expanded = walk.inner, walk.words.expanded

    def known_exports(self) -> list[str]:
        return [name for name in self.exported if name in self.words.variables]

    def environment(self) -> dict[str, Word]:
        known = {name: self.words.variables[name] for name in self.known_exports()}
        return {
            name: self.words.finished(Raw(" ".join(raw.text for raw in value.words), value.words[0].line))
            for name, value in known.items()
            if value.words
        }

    def doubts(self, node: Any) -> list[str]:
        """Variables of the command that have one value here, and another under a condition."""
        used = set(_USED.findall(self.words.source_of(node)))
        return [
            f"{self.name}:{line}: {name} is set under a condition as well: the value before it is taken"
            for name, line in self.also_set.items()
            if name in used
        ]

    def cut_short(self, node: Any) -> list[str]:
        """A comment or a blank after the backslash of a continued line ends a command before its last arguments."""
        source = self.words.source
        found = _CUT_SHORT.match(source, node.end_byte)
        if not found:
            return []
        if found["late"]:
            after = source.find(b"\n", found.end()) + 1
        else:
            after = found.end()
        if not after or not _ARGUMENT.match(source, after):
            return []
        what = "a blank after the backslash" if found["blank"] is not None else "a comment"
        ends, lost = (source.count(b"\n", 0, at) + 1 for at in (max(found.start("late"), found.start("line")), after))
        line = line_of(node) + self.words.source_of(node).count("\n") if found["blank"] is not None else ends
        return [f"{self.name}:{line}: {what} ends the command: the arguments from line {lost} on do not belong to it"]

    def here(self, node: Any) -> None:
        """A here-document: `read NAME <<EOF` fills a variable; `bash <<EOF` and `cat > x.sh <<EOF` hold a script."""
        command, *rest = node.named_children
        here = next((child for child in rest if child.type == "heredoc_redirect"), None)
        start = next((child for child in here.children if child.type == "heredoc_start"), None) if here else None
        if command.type != "command" or here is None or start is None:
            return
        body = next((child for child in here.children if child.type == "heredoc_body"), None)
        quoted = self.words.source_of(start)[:1] in ("'", '"', "\\")
        text = "" if body is None else self.words.source_of(body) if quoted else self.words.here_text(body)
        words = self.words.source_of(command).split()
        files = [self.words.source_of(child) for child in rest if child.type == "file_redirect"]
        files += [self.words.source_of(child) for child in here.named_children if child.type == "file_redirect"]
        if words[0] == "read":
            self.put(words[-1], Variable([Raw(text, line_of(here))]), line_of(here))
        elif body and (_RUN_HERE & set(words) or (words == ["cat"] and any(file.endswith(_SCRIPTS) for file in files))):
            self.script(text, line_of(body))

    def chain(self, node: Any) -> None:
        """`a && b` reaches `b` if `a` is no test; what stands behind a test or `||` only some runs reach."""
        left, operator, *right = [child for child in node.children if child.type != "comment"]
        self.visit(left)
        truth, both = decide(self.words, left), self.words.source_of(operator) == "&&"
        if truth is both or (truth is None and both and left.type != "test_command"):
            for child in right:
                self.visit(child)
        elif truth is None:
            self.branch(node, right)

    def choice(self, node: Any) -> None:
        """`if`: the branch that runs, where tests decide; else each branch beside the others."""
        branches = _branches(node)
        for index, (tests, body) in enumerate(branches):
            for test in tests:
                self.visit(test)
            truth = decide(self.words, tests[0]) if len(tests) == 1 else None if tests else True
            if truth is None:
                self.branch(node, *(each for _, each in branches[index:]))
                return
            if truth:
                for child in body:
                    self.visit(child)
                return

    def cases(self, node: Any) -> None:
        """`case`: the item that matches, where the word and the patterns decide; else each item beside the others."""
        value, *items = [child for child in node.named_children if child.type != "comment"]
        parts = [_case(item) for item in items if item.type == "case_item"]
        for patterns, body in parts:
            truth = matches(self.words, value, patterns)
            if truth is None:
                self.branch(node, *(each for _, each in parts))
                return
            if truth:
                for child in body:
                    self.visit(child)
                return

    def branch(self, node: Any, *bodies: list[Any]) -> None:
        """Bodies of which a run reaches at most one, each read with the variables that are known before."""
        line = line_of(node)
        changed: dict[str, Variable | None] = {}
        for body in bodies:
            self.words.undo.append({})
            if node.type == "for_statement":
                name = self.words.source_of(node.named_children[0])
                changing = self.words.gap(f"${name}", "changes in a loop", line)
                self.words.put(name, Variable([Raw(changing, line)]))
            for child in body:
                self.visit(child)
            changed |= self.words.back()
        for name, old in changed.items():
            if old and any(raw.text for raw in old.words):
                self.also_set[name] = line
            else:
                self.words.put(name, self.sometimes(name, line))

    def sometimes(self, name: str, line: int) -> Variable:
        text = self.words.gap(f"${name}", f"is set only under a condition (line {line})", line)
        return Variable([Raw(text, line)])


def _branches(node: Any) -> list[tuple[list[Any], list[Any]]]:
    """(conditions, body) of `if`, of each `elif`, and of `else`, which has no condition."""
    tests: list[Any] = []
    body: list[Any] = []
    rest: list[tuple[list[Any], list[Any]]] = []
    inside = node.type == "else_clause"
    for child in node.children:
        if child.type == "then":
            inside = True
        elif child.type in ("elif_clause", "else_clause"):
            rest += _branches(child)
        elif child.is_named and child.type != "comment":
            (body if inside else tests).append(child)
    return [(tests, body), *rest]


def _case(item: Any) -> tuple[list[Any], list[Any]]:
    """(patterns, body) of one item of `case`."""
    closing = next((i for i, child in enumerate(item.children) if child.type == ")"), len(item.children))
    named = [[child for child in part if child.is_named and child.type != "comment"]
             for part in (item.children[:closing], item.children[closing:])]  # fmt: skip
    return named[0], named[1]


def _appended(old: Variable, new: Variable) -> Variable:
    if new.is_array:
        return Variable(old.words + new.words, is_array=True)
    text = "".join(raw.text for raw in [*old.words[:1], *new.words])
    return Variable([Raw(text, new.words[0].line), *old.words[1:]], old.is_array)
