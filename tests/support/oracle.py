"""What errors tell."""

from __future__ import annotations

import re


def says_sent(error: BaseException | None, transfer_id: str) -> bool:
    """Whether who reads the error learns which transfer is out."""
    return transfer_id in str(error) and re.search(r"\b(sent|delivered)\b", str(error)) is not None
