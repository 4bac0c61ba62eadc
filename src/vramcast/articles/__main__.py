"""`python -m vramcast.articles`: print docs/articles.md."""

from __future__ import annotations

import sys

from vramcast.articles.guide import page

sys.stdout.write(page())
