"""A bash launch script, read without executing anything: its variables, and the words of its commands.

The parser is tree-sitter's for bash. Assignments count in the order in which they stand; one that only some runs reach
(in a branch, a loop, a function) leaves its variable unknown to what follows, unless it had a value before.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

from vramcast.errors import refuse
from vramcast.readers.shell_words import Raw, Variable, Word, Words, line_of

_BRANCHES = frozenset(
    "if_statement elif_clause else_clause for_statement c_style_for_statement while_statement case_statement "
    "case_item function_definition".split()
)
_CUT_SHORT = re.compile(
    rb"[ \t]*\\(?:[ \t]+(?P<late>#)|[ \t]+(?P<blank>)\r?\n|\r?\n[ \t]*(?P<line>#[^\n]*\n))\s*", re.ASCII
)
_ARGUMENT = re.compile(rb"[ \t]*(?:--?[\w-]|[+~]{0,2}[A-Za-z_][\w.]*=)", re.ASCII)
_MOST_REPAIRS = 100

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
        Refused: a command that is looked for stands where the text is not bash, or the text is nested too deeply.
    """
    try:
        source, root = _parsed(text)
        walk = _Walk(source, name, recognise)
        walk.visit(root)
    except RecursionError:
        raise refuse(f"{name} is nested too deeply") from None
    return walk.found


def _parsed(text: str) -> tuple[bytes, Any]:
    """The bytes that were parsed, and the root of their nodes.

    The parser takes the line after `A=1 B=2` for a command with these assignments, so such lines are ended with `;`.
    """
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    parser = Parser(Language(tree_sitter_bash.language()))
    source = text.encode("utf-8", "replace")
    root = parser.parse(source).root_node
    for _ in range(_MOST_REPAIRS):
        ends = _swallowed(source, root)
        if not ends:
            break
        for end in reversed(ends):
            source = source[:end] + b";" + source[end:]
        root = parser.parse(source).root_node
    return source, root


def _swallowed(source: bytes, node: Any) -> list[int]:
    """Where a line of assignments ends and the parser went on with the next line."""
    ends: list[int] = []
    for one, after in pairwise(node.children):
        between = source[one.end_byte : after.start_byte].replace(b"\\\n", b"")
        if node.type == "command" and one.type == "variable_assignment" and b"\n" in between:
            return [one.end_byte]
    for child in node.named_children:
        ends += _swallowed(source, child)
    return ends


class _Walk:
    """One pass over the nodes of a script, in order."""

    def __init__(self, source: bytes, name: str, recognise: Recognise[Any]) -> None:
        self.words = Words(source)
        self.name = name
        self.recognise = recognise
        self.exported: set[str] = set()
        self.found: list[tuple[Any, Command]] = []
        self.also_set: dict[str, int] = {}

    def visit(self, node: Any) -> None:
        match node.type:
            case "variable_assignment":
                self.assign(node)
            case "declaration_command":
                self.declare(node)
            case "command":
                self.command(node)
            case "redirected_statement":
                self.read_here(node)
                self.children(node)
            case "list":
                self.chain(node)
            case kind if kind in _BRANCHES:
                self.branch(node)
            case _:
                self.children(node)

    def children(self, node: Any) -> None:
        for child in node.named_children:
            self.visit(child)

    def assign(self, node: Any) -> None:
        """`A=1`, `A+=1`, `A=(x y)`, `A+=(z)`."""
        target, operator, *value = node.children
        name, line = self.words.source_of(target), line_of(node)
        if value and value[0].type == "array":
            items = [child for child in value[0].named_children if child.type != "comment"]
            new = Variable([raw for item in items for raw in self.words.fields(item)], is_array=True)
        else:
            new = Variable([Raw(self.words.text(value[0]) if value else "", line)])
        old = self.words.variables.get(name)
        if old and self.words.source_of(operator) == "+=":
            new = _appended(old, new)
        self.words.variables[name] = new

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
        words = [self.words.finished(raw) for part in nodes for raw in self.words.fields(part)]
        what = self.recognise(words)
        if what is None:
            return
        if node.has_error:
            raise refuse(f"{self.name}:{line_of(node)}: this command is not bash that can be read")
        self.found.append((what, Command(words, self.environment(), [*self.doubts(node), *self.cut_short(node)])))

    def environment(self) -> dict[str, Word]:
        known = {name: self.words.variables[name] for name in self.exported if name in self.words.variables}
        return {
            name: self.words.finished(Raw(" ".join(raw.text for raw in value.words), value.words[0].line))
            for name, value in known.items()
            if value.words
        }

    def doubts(self, node: Any) -> list[str]:
        """Variables of the command that have one value here, and another under a condition."""
        text = self.words.source_of(node)
        return [
            f"{self.name}:{line}: {name} is set under a condition as well: the value before it is taken"
            for name, line in self.also_set.items()
            if re.search(rf"\$\{{?{name}\b", text)
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

    def read_here(self, node: Any) -> None:
        """`read -r -d '' NAME <<EOF`: the text of the here-document is the value of NAME."""
        command, *rest = node.named_children
        here = next((child for child in rest if child.type == "heredoc_redirect"), None)
        if command.type != "command" or here is None or not self.words.source_of(command).startswith("read "):
            return
        start = next(child for child in here.children if child.type == "heredoc_start")
        body = next((child for child in here.children if child.type == "heredoc_body"), None)
        quoted = self.words.source_of(start)[:1] in ("'", '"', "\\")
        text = "" if body is None else self.words.source_of(body) if quoted else self.words.here_text(body)
        name = self.words.source_of(command.named_children[-1])
        self.words.variables[name] = Variable([Raw(text, line_of(here))])

    def chain(self, node: Any) -> None:
        """`a && b` reaches `b` if `a` is no test; what stands behind a test or `||` only some runs reach."""
        left, operator, *right = [child for child in node.children if child.type != "comment"]
        self.visit(left)
        if self.words.source_of(operator) == "&&" and left.type != "test_command":
            for child in right:
                self.visit(child)
        else:
            self.branch(node, right)

    def branch(self, node: Any, nodes: list[Any] | None = None) -> None:
        before, line = dict(self.words.variables), line_of(node)
        if node.type == "for_statement":
            name = self.words.source_of(node.named_children[0])
            changing = self.words.gap(f"${name}", "changes in a loop", line)
            self.words.variables[name] = Variable([Raw(changing, line)])
        for child in node.named_children if nodes is None else nodes:
            self.visit(child)
        for name, value in self.words.variables.items():
            if before.get(name) is value:
                continue
            if name in before:
                self.also_set[name] = line
            self.words.variables[name] = before.get(name) or self.sometimes(name, line)

    def sometimes(self, name: str, line: int) -> Variable:
        text = self.words.gap(f"${name}", f"is set only under a condition (line {line})", line)
        return Variable([Raw(text, line)])


def _appended(old: Variable, new: Variable) -> Variable:
    if new.is_array:
        return Variable(old.words + new.words, is_array=True)
    text = "".join(raw.text for raw in [*old.words[:1], *new.words])
    return Variable([Raw(text, new.words[0].line), *old.words[1:]], old.is_array)
