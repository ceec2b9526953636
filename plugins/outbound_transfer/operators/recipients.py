"""Recipients of a delivery, given or queried; and how to mask their phone numbers and a security answer."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from outbound_transfer.airflow_compat import names
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.client.new_transfer import MAX_RECIPIENTS, RECIPIENT_FIELDS, show_address
from outbound_transfer.files.content import wrap_contents
from outbound_transfer.wording import pluralize, redact

if TYPE_CHECKING:
    from outbound_transfer.delivery.delivery import Delivery

_TEMPLATE: Final = re.compile("{[{%#]")  # an expression, a statement or a comment of Jinja


class RecipientsFromSql:
    """Recipients that a query returns, for an operator's argument ``recipients``.

    The query runs in each attempt, before anything is created. Its columns are ``email`` and optionally ``name`` and
    ``phone``, in any case and order. An attempt that finds different recipients than the previous one discards an
    unsent draft, and fails after a send.

    :param sql: the query; may be a template. Pass values in ``parameters``, which the database driver quotes.
    :param conn_id: connection of a SQL database; may be a template.
    :param parameters: values for the query's placeholders, in the driver's style; may be templates, and are not shown.
    :param on_empty: outcome of the task if the query returns no rows: ``fail`` or ``skip``.
    """

    template_fields: Sequence[str] = ("sql", "conn_id", "parameters")

    def __init__(self, *, sql: str, conn_id: str, parameters: Any = None, on_empty: str = "fail") -> None:
        if on_empty not in ("fail", "skip"):
            raise ValueError(f"on_empty must be one of fail, skip, not {on_empty!r}")
        self.sql = sql
        self.conn_id = conn_id
        self.parameters = parameters
        self.on_empty = on_empty

    def __repr__(self) -> str:
        return f"RecipientsFromSql(sql={self.sql!r}, conn_id={self.conn_id!r})"

    def load(self) -> list[dict[str, Any]]:
        """Run the query; return a mapping for each row, without the fields that are NULL."""
        from outbound_transfer.queries.errors import QueryError
        from outbound_transfer.queries.export import open_connection, read_result

        parameters = unmask(self.parameters)
        try:
            with (
                open_connection(self.conn_id, is_personal=True) as (connection, worded),
                read_result(connection, worded, self.sql, parameters) as result,
            ):
                columns = [column.lower() for column in result.columns]
                if "email" not in columns or len(set(columns)) < len(columns) or not set(columns) <= RECIPIENT_FIELDS:
                    found = redact(", ".join(columns), _texts(parameters))[:200] or "nothing"
                    raise InvalidDelivery(
                        "The query for the recipients must return the column email, optionally name and phone, and no "
                        f"others; it returned {found}"
                    )
                all_rows = chain.from_iterable(zip(*batch, strict=True) for batch in result.batches)
                rows = list(islice(all_rows, MAX_RECIPIENTS + 1))
        except QueryError as error:
            raise type(error)(f"the query for the recipients: {error}") from None
        if len(rows) > MAX_RECIPIENTS:
            raise InvalidDelivery(f"The query for the recipients returned more than {MAX_RECIPIENTS} rows")
        # A database may store phone numbers as integers; those of a template may have lost their zeros.
        return [
            {field: str(value) if isinstance(value, int) else value for field, value in fields if value is not None}
            for fields in (zip(columns, row, strict=True) for row in rows)
        ]


def load_recipients(task: Any, delivery: Delivery) -> None:
    """Run the query for a task's recipients, if there is one, and mask their phone numbers."""
    query = task.recipients
    if not isinstance(query, RecipientsFromSql):
        return
    rows = query.load()
    task.log.info("The query for the recipients returned %s", pluralize(len(rows), "row"))
    if not rows:
        reason = "The query for the recipients returned no rows: nothing is delivered"
        raise names.AirflowSkipException(reason) if query.on_empty == "skip" else InvalidDelivery(reason)
    task.recipients = mask_phones(rows)
    delivery.client.secrets.update(find_secrets(task.recipients))


class MaskedValue:
    """Wraps a secret of any type, which Airflow and logs show as ``***``. A ``__dict__`` would reveal it."""

    __slots__ = ("secret",)

    def __init__(self, secret: Any) -> None:
        self.secret = secret

    def __repr__(self) -> str:
        return "***"


def mask(value: Any) -> Any:
    """Wrap a secret, and have the task's log mask it. None and "" are returned as they are."""
    if value is None or value == "" or isinstance(value, MaskedValue) or hasattr(value, "resolve"):
        return value  # the last is another task's result, which does not exist yet
    for text in _texts(value):
        names.mask_secret(text)
    return MaskedValue(value)


def parse_text(given: Any) -> Any:
    """Parse a JSON or Python literal, such as a rendered ``var.value`` or ``var.json``; return other values as is."""
    if not isinstance(given, str) or not given.lstrip().startswith(("[", "{", "(")):
        return given
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            value = read(given.strip())
            # The order of a set differs between processes, so each attempt's delivery would differ.
            return value if isinstance(value, list | tuple | dict) else given
    return given


def mask_phones(recipients: Any, hide: Callable[[Any], Any] = mask) -> Any:
    """Wrap everything about recipients that is neither an address nor a name; JSON and Python strings are parsed.

    :param hide: wraps a value; :func:`mask_literals` before templates are rendered.
    """
    if isinstance(recipients, RecipientsFromSql):
        own = copy(recipients)  # whose templates are rendered in place
        own.parameters = mask_literals(own.parameters)
        return own
    if hide is mask or not is_template(recipients):
        recipients = parse_text(recipients)
    if isinstance(recipients, str):
        return recipients if show_address(recipients) == recipients else hide(recipients)
    if isinstance(recipients, Mapping):
        return {field: value if _may_show(field, value) else hide(value) for field, value in recipients.items()}
    # Any iterable, as the type hint says: XComs of mapped tasks come as Airflow's own sequence type.
    is_listed = isinstance(recipients, Iterable) and not isinstance(recipients, bytes | bytearray)
    if is_listed and not hasattr(recipients, "resolve"):
        return [mask_phones(recipient, hide) for recipient in recipients]
    return hide(recipients)


def hide_fields(task: Any, fields: Collection[str], hide: Callable[[Any], Any]) -> None:
    """Hide the secrets in these fields of an operator with :func:`mask` or :func:`mask_literals`."""
    if "files" in fields:
        task.files = wrap_contents(_to_repeatable(task.files), rendered=hide is mask)
    if "security_answer" in fields:
        task.security_answer = hide(task.security_answer)
    if "recipients" in fields:
        task.recipients = mask_phones(_to_repeatable(task.recipients), hide)


def _to_repeatable(value: Any) -> Any:
    # The first attempt would consume an iterator: a retry in the same process would deliver less, or to fewer people.
    return list(value) if isinstance(value, Iterator) and not hasattr(value, "read") else value


def mask_literals(value: Any) -> Any:
    """Wrap every string and number in plain data, except templates."""
    if isinstance(value, Mapping | list | tuple):
        return _with_each(value, mask_literals)
    return mask(value) if isinstance(value, str | bytes | int | float) and not is_template(value) else value


def is_template(value: Any) -> bool:
    """Return whether Jinja would find something to render in a string."""
    return isinstance(value, str) and bool(_TEMPLATE.search(value))


def without_none(template: Any, value: Any) -> Any:
    """Return a rendered value with None for the string "None", which a template without a value renders."""
    if is_template(template):
        return None if value == "None" else value
    if isinstance(template, Mapping) and isinstance(value, Mapping):
        return {key: without_none(template.get(key), each) for key, each in value.items()}
    if isinstance(template, list | tuple) and isinstance(value, list | tuple) and len(template) == len(value):
        return [without_none(*each) for each in zip(template, value, strict=True)]
    return value


def unmask(value: Any) -> Any:
    """Return ``value`` with every wrapped secret in it unwrapped, for the call that needs it."""
    if isinstance(value, Mapping | list | tuple):
        return _with_each(value, unmask)
    return value.secret if isinstance(value, MaskedValue) else value


def find_secrets(value: Any) -> Iterator[str]:
    """Yield the strings that are wrapped in ``value``."""
    for leaf in _leaves(value):
        if isinstance(leaf, MaskedValue):
            yield from _texts(leaf.secret)


def _may_show(field: str, value: Any) -> bool:
    return isinstance(value, str) and (field == "name" or (field == "email" and show_address(value) == value))


def _texts(value: Any) -> Iterator[str]:
    for leaf in _leaves(value):
        if isinstance(leaf, bytes | bytearray):
            yield leaf.decode("utf-8", "replace")
        elif isinstance(leaf, str | int | float):
            yield str(leaf)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    else:
        yield value


def _with_each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: change(item) for key, item in value.items()}
    return (tuple if isinstance(value, tuple) else list)(map(change, value))
