"""JSON Lines: one object a row, in UTF-8."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, BinaryIO

from outbound_transfer.queries.values import JSON_ENCODER, Result, encodable_texts, to_text


def write(result: Result, file: BinaryIO) -> None:
    """Write a result as JSON Lines.

    :raises ResultNotWritable: a text cannot be encoded.
    """
    for batch in result.batches:
        rows = zip(*map(_with_texts, batch), strict=True)
        with encodable_texts():
            file.write(JSON_ENCODER.encode_lines([dict(zip(result.columns, row, strict=True)) for row in rows]))


def _with_texts(values: Sequence[Any]) -> Sequence[Any]:
    """Return values with the text of those that JSON has no type for, or rounds."""
    return [to_text(value) if isinstance(value, Decimal | timedelta) else value for value in values]
