"""Sizes of files in binary megabytes."""

from __future__ import annotations

MEGABYTE = 1_048_576


def megabytes(size: int) -> int:
    """Return `size` in binary megabytes, rounded up (service-api.md, R33)."""
    return -(-size // MEGABYTE)
