"""Errors of queries whose results are delivered. Nothing was created at the service for any of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.client.wording import redact

#: A quote that begins or ends a quoted text: not an apostrophe within a word.
_QUOTE: Final = re.compile(r"""((?<!\w)['"`]|['"`](?!\w))""")

#: A table with its schema, for example.
_QUALIFIED_NAME: Final = re.compile(r"(?:[^\W\d]\w*\.)+([^\W\d]\w*)")

_MASK: Final = "***"


def describe_error(error: Exception) -> tuple[str, str]:
    """Return the kind and the text of a driver's error; the kind of MySQL's errors has their number."""
    match error.args:
        case (int() as code, str() as text, *_):
            return f"{type(error).__name__} {code}", text
    return type(error).__name__, str(error)


def mask_values(text: str, sql: str) -> str:
    """Mask each part of a driver's text that may be a value of a row: a quoted text, a number, an address.

    What the query itself contains is shown.
    """
    known, pieces = sql.casefold(), _QUOTE.split(text)  # a text, a quote, a quoted text, a quote, a text …
    is_balanced = len(pieces) % 4 == 1
    for number in range(2, len(pieces), 4):
        if not (is_balanced and _is_of_query(pieces[number], known)):
            # A value may have quotes itself, so nothing is shown up to the last one.
            pieces[number:] = [_MASK, pieces[number - 1], pieces[-1] if is_balanced else ""]
            break
    pieces[::4] = [_mask_words(piece, known) for piece in pieces[::4]]
    return "".join(pieces)


def _is_of_query(quoted: str, known: str) -> bool:
    name = _QUALIFIED_NAME.fullmatch(quoted.casefold())
    return quoted.casefold() in known or bool(name and name[1] in known)


def _mask_words(text: str, known: str) -> str:
    return re.sub(r"\S+", lambda word: _MASK if _may_be_value(word[0], known) else word[0], text)


def _may_be_value(word: str, known: str) -> bool:
    if "@" not in word and not any(map(str.isnumeric, word)):
        return False
    return not any(map(str.isalpha, word)) or word.strip(".,:;!?()[]").casefold() not in known


def redact_parameters(text: str, parameters: Any, secrets: Iterable[str] = ()) -> str:
    """Return a text of a driver without the secrets of its connection and without the values of a query's parameters.

    :param parameters: in the driver's style: a sequence, a mapping, or None.
    """
    return redact(text, [*secrets, *_texts(parameters)])


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
    """The database refused the connection or the query, or stopped while its rows were read.

    What to do: correct the query, or do what the database says. If another process has the DuckDB file open, run the
    query after it. Retried.
    """


class ResultEmpty(QueryError):
    """A query returned no row, and an empty file is not wanted.

    What to do: set ``on_empty`` to ``skip`` or ``send`` if that may be. Retried.
    """


class ResultTooLong(QueryError):
    """A query returned more rows than allowed.

    What to do: raise ``max_rows``, or narrow the query. Retried.
    """


class ResultNotWritable(QueryError):
    """A value or a column has no exact form in the file's format.

    What to do: give columns of one name an alias (``AS``), convert the value in the query (``CAST``), or choose another
    format. Retried.
    """
