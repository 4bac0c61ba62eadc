"""`python -m vramcast.rules_of_thumb`: print docs/articles.md."""

from __future__ import annotations

import sys

from vramcast.rules_of_thumb.guide import page

sys.stdout.write(page())
