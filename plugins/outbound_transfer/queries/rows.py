"""The rows of a result, in batches of columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

#: One sequence of values for each column, all of one length.
Batch: TypeAlias = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Result:
    """A query's result; its rows can be read once.

    :ivar columns: their names, at least one; two may be equal.
    :ivar batches: none of them is empty. Their values are normalized; see :func:`.values.normalize`.
    """

    columns: Sequence[str]
    batches: Iterable[Batch]
