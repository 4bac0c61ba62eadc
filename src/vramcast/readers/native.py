"""Job files of this package: flat paths or nested tables, in TOML, YAML or JSON, read and written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from vramcast.errors import Mistakes
from vramcast.readers.document import Document
from vramcast.types.job import Fact, Job, Origin, Understanding, check_value, flatten
from vramcast.types.paths import Value, is_path

Format = Literal["toml", "yaml", "json"]
# Characters that JSON leaves as they are and that YAML or TOML may not contain.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")


def read_native(document: Document, name: str) -> Understanding:
    """The facts of a job file; `name` is the file in origins.

    Raises:
        Refused: with every unknown path and wrong value.
    """
    from vramcast.readers.user_words import is_word, read_words

    mistakes = Mistakes()
    facts: list[Fact] = []
    words: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    for path, raw in flatten(document.content):
        line = document.lines.get(path)
        origin = Origin(f"{name}:{line}" if line else name, path)
        with mistakes.collect():
            if is_path(path) or not is_word(path):
                facts.append(Fact(path, check_value(path, raw, origin), origin))
            else:
                words[path], origins[path] = raw, origin
    told = Understanding([])
    with mistakes.collect():
        told = read_words(words, origins)
    mistakes.done()
    return Understanding(facts) + told


def write_job(job: Job, format: Format) -> str:
    """The job as the text of a file, one flat path a line; `read_config` gives the same job back."""
    content = job.to_file()
    if format == "json":
        inner = ",\n".join(f"  {_quote(path)}: {_value(value, ': ')}" for path, value in content.items())
        return f"{{\n{inner}\n}}\n"
    if format == "yaml":
        return "".join(f"{path}: {_value(value, ': ')}\n" for path, value in content.items())
    # Quoted, because `optimizer` and `optimizer.impl` are both paths and TOML would make a table of the first.
    return "".join(f"{_quote(path)} = {_value(value, ' = ')}\n" for path, value in content.items())


def _value(value: Value, between: str) -> str:
    """A value in the notation that the three formats share; `between` stands between a key and its value."""
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quote(key)}{between}{_value(item, between)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item, between) for item in value) + "]"
    if value is None and between == " = ":
        return '"null"'  # TOML has no null; paths that may be unset read the word.
    return json.dumps(value)


def _quote(text: Any) -> str:
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(str(text), ensure_ascii=False))
