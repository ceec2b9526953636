"""Update the columns that only the page reads. Best effort: no delivery depends on them, and nothing here raises."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from outbound_transfer.airflow_compat.names import AirflowFailException, redact
from outbound_transfer.client.errors import OutboundTransferError
from outbound_transfer.client.models import Transfer
from outbound_transfer.delivery.place import find_rows
from outbound_transfer.observability import metrics
from outbound_transfer.store import shown_deliveries
from outbound_transfer.store.config import stores_recipients
from outbound_transfer.store.deliveries import Deliveries
from outbound_transfer.store.errors import ADDRESS
from outbound_transfer.store.rows import Shown, format_timestamp, read_event_time, storable_text

_MAX_ERROR, _MAX_STATUS = 500, 40  # characters of an error, and of a status that this version does not know

#: An email address, as far as it can be recognized in a string.
_ADDRESS: Final = re.compile(r"(\"[^\"]*\"|[^\s,;<>\"']+)@[^\s,;<>\"']+")

log = logging.getLogger(__name__)


def show(
    conn_id: str, account: Callable[[], str], transfers: Mapping[str, Transfer | None], rows: Deliveries | None = None
) -> None:
    """Store the status of transfers, by id, in their rows, if any; None means that one was deleted."""
    with _best_effort():
        if rows := rows or find_rows():
            shown = {transfer_id: _shown(transfer) if transfer else None for transfer_id, transfer in transfers.items()}
            shown_deliveries.show(rows, account(), conn_id, shown)


def show_error(rows: Deliveries, key: str, error: BaseException) -> None:
    """Store an attempt's error in its delivery's row."""
    with _best_effort():
        shown_deliveries.show_error(rows, key, storable_text(summary(error)))


def emit_in_doubt(conn_id: str) -> None:
    """Emit how many deliveries of a connection stay in doubt."""
    with _best_effort():
        if rows := find_rows():
            metrics.DELIVERIES_IN_DOUBT.emit(shown_deliveries.count_in_doubt(rows, conn_id), conn_id=conn_id)


def _shown(transfer: Transfer) -> Shown:
    """Return the page's columns for a transfer. A draft has no recipients there: it may never be sent."""
    people = transfer.recipients if stores_recipients() and not transfer.is_draft else ()
    return Shown(
        status=storable_text(transfer.status)[:_MAX_STATUS],
        subject=storable_text(transfer.subject),
        recipient_count=len(transfer.recipients),
        picked_up_count=len(transfer.picked_up),
        sent_at=read_event_time(transfer.sent_at),
        expires_at=read_event_time(transfer.expires_at),
        recipients=[
            {
                "email": storable_text(each.email),
                "name": storable_text(each.name or ""),
                "picked_up_at": (at := read_event_time(each.picked_up_at)) and format_timestamp(at),
            }
            for each in people
        ],
    )


def summary(error: BaseException) -> str:
    """Return an error as one line without secrets and addresses; only the first line of other libraries' errors."""
    own = error.__context__ if isinstance(error, AirflowFailException) else error  # which is raised in its place
    lines = str(error).split() if isinstance(own, OutboundTransferError) else str(error).strip().splitlines()[:1]
    # Masked as in the log: an error may quote an object store or a database.
    text = str(redact(" ".join(lines) or type(error).__name__))
    return ADDRESS.sub("***", _ADDRESS.sub("***", text))[:_MAX_ERROR]


@contextmanager
def _best_effort() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.warning("The page may show an older state of this delivery: %s: %s", type(error).__name__, summary(error))
