"""The frameworks whose configurations are read: one tuple, which detection, launch scripts, `--set` and native answers
go through.

The first row that recognises a configuration reads it, so those with keys of their own come first.
"""

from __future__ import annotations

from vramcast.readers.framework import Framework
from vramcast.readers.frameworks.accelerate import ACCELERATE
from vramcast.readers.frameworks.deepspeed import DEEPSPEED
from vramcast.readers.frameworks.trl import TRL
from vramcast.readers.frameworks.verl import VERL
from vramcast.readers.native import JOB_FILE

FRAMEWORKS: tuple[Framework, ...] = (DEEPSPEED, VERL, ACCELERATE, JOB_FILE, TRL)
SCRIPTS = TRL
"""who reads a script that no framework knows by name: nearly all are around Hugging Face's Trainer"""
