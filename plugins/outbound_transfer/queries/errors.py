"""Errors of queries whose results are delivered. Nothing was created at the service for any of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from outbound_transfer.protocol.errors import OutboundTransferError
from outbound_transfer.protocol.redaction import WITHHELD, redact

#: A text of this length or shorter occurs in ordinary words, so it cannot be masked in a text: that is withheld.
_MAX_SHORT: Final = 6


def redact_parameters(text: str, parameters: Any, secrets: Iterable[str] = ()) -> str:
    """Return a text of a driver without the secrets of its connection and without the values of a query's parameters.

    :param parameters: in the driver's style: a sequence, a mapping, or None.
    :return: as :func:`.redact` returns it; a text that has a short value is withheld.
    """
    values = {value.strip() for value in _texts(parameters)} - {""}
    short = {value for value in values if len(value) <= _MAX_SHORT or sum(map(str.isalnum, value)) <= _MAX_SHORT}
    if any(value.casefold() in text.casefold() for value in short):
        return WITHHELD
    return redact(text, [*secrets, *(values - short)])


def _texts(parameters: Any) -> Iterator[str]:
    if isinstance(parameters, Mapping):
        parameters = list(parameters.values())
    if isinstance(parameters, list | tuple | set | frozenset):
        for each in parameters:
            yield from _texts(each)
    elif isinstance(parameters, bytes | bytearray | memoryview):
        yield bytes(parameters).decode(errors="replace")
    elif parameters is not None:
        yield str(parameters)


class QueryError(OutboundTransferError):
    """The result of a query cannot be delivered."""


class QueryFailed(QueryError):
    """The database refused the connection or the query, or stopped while its rows were read."""


class ResultEmpty(QueryError):
    """A query returned no row, and an empty file is not wanted."""


class ResultTooLong(QueryError):
    """A query returned more rows than allowed."""


class ResultNotWritable(QueryError):
    """A value or a column has no exact form in the file's format."""
