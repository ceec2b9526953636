"""Recipients that are not known before the task runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import chain, islice
from typing import Any, Final

from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.new_transfer import MAX_RECIPIENTS, RECIPIENT_FIELDS
from outbound_transfer.client.wording import redact
from outbound_transfer.operators.masking import mask_literals, mask_phones, unmask

ON_EMPTY: Final = ("fail", "skip")


class RecipientsFromSql:
    """The recipients of a delivery, as the rows of a query: an operator's argument ``recipients``.

    The query runs in the worker, in each try, before anything is created. Its columns are ``email`` and optionally
    ``name`` and ``phone``, in any case and order. A try that finds other recipients than the one before is a try with
    other input: it discards an unsent draft, and after a send it fails.

    :param sql: the query, a template. Leave values to ``parameters``, which the database's driver quotes.
    :param conn_id: connection of a SQL database, a template.
    :param parameters: values for the query's placeholders, in the form that the driver takes; templates. They are
        never shown.
    :param on_empty: outcome of the task if the query returns no row: ``fail`` or ``skip``.
    :raises ValueError: ``on_empty`` is neither.
    """

    template_fields: Sequence[str] = ("sql", "conn_id", "parameters")

    def __init__(self, *, sql: str, conn_id: str, parameters: Any = None, on_empty: str = "fail") -> None:
        if on_empty not in ON_EMPTY:
            raise ValueError(f"on_empty must be one of {', '.join(ON_EMPTY)}, not {on_empty!r}")
        self.sql = sql
        self.conn_id = conn_id
        self.parameters = parameters
        self.on_empty = on_empty

    def __repr__(self) -> str:
        return f"RecipientsFromSql(sql={self.sql!r}, conn_id={self.conn_id!r})"

    def of_one_task(self) -> RecipientsFromSql:
        """Return a copy whose templates a task may render in place; it shows no parameters."""
        own = copy(self)
        own.parameters = mask_literals(self.parameters)
        return own

    def load(self) -> list[dict[str, Any]]:
        """Run the query.

        :return: a mapping for each row, without the fields that are NULL.
        :raises NotASqlConnection: the connection's hook is not a ``DbApiHook``.
        :raises QueryError: the database cannot be reached, or refuses the query.
        :raises InvalidDelivery: the columns are not those of a recipient, or the rows are more than the service takes.
        """
        from outbound_transfer.queries.connection import query_result
        from outbound_transfer.queries.errors import QueryError

        parameters = unmask(self.parameters)
        try:
            with query_result(self.conn_id, self.sql, parameters, is_personal=True) as result:
                columns = [column.lower() for column in result.columns]
                _check_columns(columns, parameters)
                all_rows = chain.from_iterable(zip(*batch, strict=True) for batch in result.batches)
                rows = list(islice(all_rows, MAX_RECIPIENTS + 1))
        except QueryError as error:
            raise type(error)(f"the query for the recipients: {error}") from None
        if len(rows) > MAX_RECIPIENTS:
            raise InvalidDelivery(f"The query for the recipients returned more than {MAX_RECIPIENTS} rows")
        # A database may store phones as numbers; in a template, one would have lost its zeros.
        return [
            {field: str(value) if isinstance(value, int) else value for field, value in fields if value is not None}
            for fields in (zip(columns, row, strict=True) for row in rows)
        ]


def mask_recipients(recipients: Any) -> Any:
    """Mask the phones of the recipients, unless a query is to find them: it shows nothing."""
    return recipients if isinstance(recipients, RecipientsFromSql) else mask_phones(recipients)


def _check_columns(columns: list[str], parameters: Any = None) -> None:
    values = parameters.values() if isinstance(parameters, Mapping) else parameters or ()
    if "email" not in columns or len(set(columns)) < len(columns) or not set(columns) <= RECIPIENT_FIELDS:
        raise InvalidDelivery(
            "The query for the recipients must return the column email, optionally name and phone, and no other, not "
            f"{redact(', '.join(columns), map(str, values))[:200] or 'nothing'}"
        )
