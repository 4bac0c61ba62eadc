"""Models of the Hugging Face Hub: the config.json in this machine's cache, and fetching one into it."""

from __future__ import annotations

import glob
import importlib
import os
import re

from vramcast.errors import refuse


def is_hub_id(name: str) -> bool:
    """Whether it is written as `owner/model`."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def cached_config(name: str) -> str | None:
    """The config.json of a Hub id that a framework on this machine has downloaded before; None if there is none.

    Reads files only. Of several revisions the one that `main` points to.
    """
    if not is_hub_id(name):
        return None
    folder = os.path.join(_cache(), "models--" + name.replace("/", "--"))
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="utf-8") as file:
            revision = file.read().strip()
    except (OSError, UnicodeDecodeError):
        revision = ""
    if not re.fullmatch(r"\w+", revision):
        revision = "*"
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "snapshots", revision, "config.json")))
    return found[-1] if found else None


def fetch_config(name: str) -> None:
    """Download the config.json of a Hub id into the cache. The only code of the package that uses the network.

    Raises:
        Refused: huggingface_hub is not installed, no such model, no access, no network.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise refuse("--hub needs huggingface_hub", help="pip install 'vramcast[hub]'") from None
    try:
        hub.hf_hub_download(name, "config.json", cache_dir=_cache())
    except (OSError, ValueError) as error:  # its errors for HTTP, missing files and wrong ids are of these kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise refuse(f"the Hub gives no config.json of {name!r}", reason=reason, **{"from": "--hub"}) from None


def _cache() -> str:
    """The cache of huggingface_hub, by its own environment variables."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    return os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
