"""What one look at many transfers asks: outstanding ones by the hundred, the others one by one or by their status.

A transfer that is waited for is *outstanding* while the listing of ``pending`` or ``partial`` shows it. One that the
listing does not show has ended, or was skipped while rows shifted, or was never listed (a draft, ``unknown``): it is
read by itself, or found with its peers where so many are missing that a page of theirs is cheaper (service.md,
GET /v1/transfers).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msgspec import structs

from outbound_transfer.protocol import calls
from outbound_transfer.protocol.errors import CallError, Forbidden, InvalidApiKey, InvalidDelivery, NotFound
from outbound_transfer.protocol.exchange import Call, Flow
from outbound_transfer.protocol.models import (
    PARTIAL,
    PENDING,
    Transfer,
    TransferPage,
    instant_of,
)
from outbound_transfer.protocol.outcomes import FINAL

#: So many transfers must be missing before a page of ended ones is tried in place of as many reads.
WORTH_A_PAGE: Final = 10

#: So many transfers a page of ended ones must show for the next to be asked for.
WORTH_ANOTHER: Final = 2

#: Reads of single transfers that may fail one after the other before the service is taken to be down.
TROUBLES: Final = 3


@dataclass
class Found:
    """What a look has found so far; filled while it goes on, so that what fails late loses nothing.

    :ivar transfers: by id; no later answer takes back that a transfer has ended.
    :ivar gone: ids that the key does not see (404), or that are none, with the reason.
    """

    transfers: dict[str, Transfer] = field(default_factory=dict)
    gone: dict[str, Exception] = field(default_factory=dict)

    def add(self, transfer: Transfer) -> None:
        before = self.transfers.get(transfer.id)
        if before is None or before.status not in FINAL:
            self.transfers[transfer.id] = transfer

    def drain(self) -> Found:
        """What has been found since this was last called."""
        drained = Found(self.transfers, self.gone)
        self.transfers, self.gone = {}, {}
        return drained


@dataclass(frozen=True)
class Listing:
    """What is known of the cost of listing all outstanding transfers of the key.

    :ivar pages: requests that it took, or that were spent before it was given up as dearer than single reads.
    :ivar age: looks since then; what it cost to learn is spent again after as many looks only.
    """

    pages: int = 1
    age: int = 0

    def is_cheaper_than(self, reads: int) -> bool:
        return self.pages < reads or (self.age >= self.pages and reads > 1)


def look(wanted: Mapping[str, float], listing: Listing, found: Found) -> Flow[Listing]:
    """Learn the state of every transfer that is ``wanted``.

    Costs at most the pages of outstanding transfers, or one request for each wanted transfer where that is less, and
    one for each that is not listed; a look that has to learn which is less may cost twice that.

    :param wanted: ids, each with when it was sent, in seconds since the epoch; 0 where that is not known.
    :param listing: what the last look returned.
    :param found: filled with what the service says.
    :return: for the next look.
    :raises CallError: the service cannot be asked just now, or refuses the key.
    """
    missing = set(wanted)
    if not listing.is_cheaper_than(len(missing)):
        yield from _read(missing, found)
        return replace(listing, age=listing.age + 1)
    oldest = min(wanted.values())
    spent = 0
    # A transfer moves from pending to partial, so in this order it is seen at least once.
    for status in (PENDING, PARTIAL):
        spent += yield from _page_through(status, missing, found, oldest, most=len(wanted) - spent)
    for status in FINAL:
        if len(missing) >= WORTH_A_PAGE:
            yield from _page_through(status, missing, found, oldest, least=WORTH_ANOTHER)
    yield from _read(missing, found)
    return Listing(max(spent, 1))


def begin(overlap: float, found: Found) -> Flow[None]:
    """Find every outstanding transfer, and those sent within ``overlap`` seconds of the newest, however they fare."""
    newest = yield calls.list_transfers(status="all", limit=1)
    if newest.data:
        yield from sent_since(_sent(newest.data[0], 0.0) - overlap, found)
    for status in (PENDING, PARTIAL):
        yield from _list(status, found)


def sent_since(instant: float, found: Found) -> Flow[None]:
    """Find every transfer that was sent at ``instant`` (seconds since the epoch) or later, however it fares.

    Pages through ``status=all``, in which no row is skipped while transfers end (service.md, GET /v1/transfers).
    """
    yield from _list("all", found, instant)


def _list(status: str, found: Found, since: float = 0.0) -> Flow[None]:
    cursor: str | None = None
    while True:
        page = yield calls.list_transfers(status=status, cursor=cursor)
        for transfer in page.data:
            if _sent(transfer, since) >= since:
                found.add(transfer)
        if _is_older(page, since) or page.next_cursor in (None, cursor):
            return
        cursor = page.next_cursor


def _page_through(
    status: str, missing: set[str], found: Found, oldest: float, *, most: int | None = None, least: int = 0
) -> Generator[Call[Any], Any, int]:
    """Take out of ``missing`` what the pages of ``status`` show; the requests that this took.

    :param oldest: when the oldest of the wanted transfers was sent.
    :param most: requests that may be spent.
    :param least: a page that shows fewer missing transfers is the last.
    """
    cursor: str | None = None
    spent = 0
    while missing and (most is None or spent < most):
        page = yield calls.list_transfers(status=status, cursor=cursor)
        spent += 1
        shown = {transfer.id: transfer for transfer in page.data if transfer.id in missing}
        for transfer in shown.values():
            found.add(transfer)
        missing.difference_update(shown)
        if len(shown) < least or _is_older(page, oldest) or page.next_cursor in (None, cursor):
            break
        cursor = page.next_cursor
    return spent


def _read(missing: Set[str], found: Found) -> Flow[None]:
    trouble: CallError | None = None
    troubles = 0
    for transfer_id in sorted(missing):
        try:
            transfer = yield calls.get_transfer(transfer_id)
            found.add(structs.replace(transfer, id=transfer_id))
        except (NotFound, InvalidDelivery) as error:
            found.gone[transfer_id] = error
        except (InvalidApiKey, Forbidden):
            raise
        except CallError as error:
            # One transfer that cannot be read must not keep the others waiting; a service that is down does.
            trouble, troubles = error, troubles + 1
            if troubles == TROUBLES:
                break
        else:
            troubles = 0
    if trouble:
        raise trouble


def _is_older(page: TransferPage, instant: float) -> bool:
    """Whether the page reaches back before ``instant``, so that all that follows was sent before it."""
    return bool(page.data) and _sent(page.data[-1], instant) < instant


def _sent(transfer: Transfer, default: float) -> float:
    sent = instant_of(transfer.sent_at)
    return default if sent is None else sent
