"""`python -m tools.rows ROWS.jsonl > FILE.jsonl`: each published row in our own paths, one a line."""

from __future__ import annotations

import json
import sys

from tools.rows.convert import convert

for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            print(json.dumps(convert(json.loads(line)), ensure_ascii=False))
