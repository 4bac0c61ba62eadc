"""Versions of what runs: part of every recording and of the cache's key."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("torch", "transformers", "peft", "accelerate", "trl", "bitsandbytes", "liger-kernel")


def versions() -> dict[str, str]:
    """Package → version, of those that are installed."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
