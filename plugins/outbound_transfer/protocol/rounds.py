"""What one look at many transfers asks: outstanding ones by the hundred, the others one by one or by their status.

A transfer that is waited for is *outstanding* while the listing of ``pending`` or ``partial`` shows it. One that the
listing does not show has ended, or was skipped while rows shifted, or was never listed (a draft, ``unknown``): it is
read by itself, or found with its peers where so many are missing that a page of theirs is cheaper (service.md,
GET /v1/transfers).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msgspec import structs

from outbound_transfer.protocol import calls
from outbound_transfer.protocol.errors import (
    CallError,
    Forbidden,
    InvalidApiKey,
    InvalidDelivery,
    MalformedAnswer,
    NotFound,
    RateLimited,
    ServerFault,
)
from outbound_transfer.protocol.exchange import Call, Flow
from outbound_transfer.protocol.models import (
    PARTIAL,
    PENDING,
    Transfer,
    TransferPage,
    Unreadable,
    instant_of,
)
from outbound_transfer.protocol.outcomes import FINAL

#: So many transfers must be missing before a page of ended ones is tried in place of as many reads.
WORTH_A_PAGE: Final = 10

#: So many transfers a page of ended ones must show for the next to be asked for.
WORTH_ANOTHER: Final = 2

#: Reads of single transfers that may fail one after the other before the service is taken to be down.
TROUBLES: Final = 3

#: Pages in a row that may show nothing new before a listing is taken to have no end; and pages in all.
FRUITLESS: Final = 3
MOST_PAGES: Final = 1_000


@dataclass
class Found:
    """What a look has found so far; filled while it goes on, so that what fails late loses nothing.

    :ivar transfers: by id; no later answer takes back that a transfer has ended.
    :ivar gone: ids that the key does not see (404), or that are none, with the reason.
    :ivar troubled: ids that could not be read, with the reason. They say nothing of the transfer.
    :ivar in_vain: ids that could not be read while nothing else could: that may be the service's fault or theirs.
    :ivar untried: some were not asked for, as too many before them could not be read.
    :ivar unreadable: rows of listings that are no transfers.
    :ivar answered: the service has given an answer that says something.
    """

    transfers: dict[str, Transfer] = field(default_factory=dict)
    gone: dict[str, Exception] = field(default_factory=dict)
    troubled: dict[str, CallError] = field(default_factory=dict)
    in_vain: dict[str, CallError] = field(default_factory=dict)
    unreadable: list[Unreadable] = field(default_factory=list)
    answered: bool = False
    untried: bool = False

    def add(self, transfer: Transfer) -> None:
        before = self.transfers.get(transfer.id)
        if before is None or before.status not in FINAL:
            self.transfers[transfer.id] = transfer

    def note(self, page: TransferPage) -> None:
        """A page has come."""
        self.answered = True
        self.unreadable += page.unreadable

    def drain(self) -> Found:
        """What has been found since this was last called."""
        drained = replace(self)
        self.transfers, self.gone, self.troubled, self.in_vain, self.unreadable = {}, {}, {}, {}, []
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


@dataclass(frozen=True)
class Row:
    """One row of a listing; ``transfer`` is None where it cannot be read."""

    id: str
    transfer: Transfer | None

    @property
    def sent(self) -> float | None:
        """When it was sent, as far as can be told."""
        return instant_of(self.transfer.sent_at) if self.transfer else None


def look(
    wanted: Mapping[str, float], listing: Listing, found: Found, failures: Mapping[str, tuple[int, float]] | None = None
) -> Flow[Listing]:
    """Learn the state of every transfer that is ``wanted``.

    Costs at most the pages of outstanding transfers, or one request for each wanted transfer where that is less, and
    one for each that is not listed; a look that has to learn which is less may cost twice that.

    :param wanted: ids, each with when it was sent, in seconds since the epoch; 0 where that is not known.
    :param listing: what the last look returned.
    :param found: filled with what the service says.
    :param failures: how often transfers could not be read by themselves, and when last: those come last, so that any
        number of them keeps nobody else waiting.
    :return: for the next look.
    :raises CallError: the service cannot be asked just now, or refuses the key.
    """
    missing = set(wanted)
    if not listing.is_cheaper_than(len(missing)):
        yield from _read(missing, found, failures or {})
        return replace(listing, age=listing.age + 1)
    oldest = min(wanted.values())
    spent = 0
    # A transfer moves from pending to partial, so in this order it is seen at least once.
    for status in (PENDING, PARTIAL):
        spent += yield from _page_through(status, missing, found, oldest, most=len(wanted) - spent)
    for status in FINAL:
        if len(missing) >= WORTH_A_PAGE:
            yield from _page_through(status, missing, found, oldest, least=WORTH_ANOTHER)
    yield from _read(missing, found, failures or {})
    return Listing(max(spent, 1))


def begin(found: Found) -> Flow[tuple[list[Row], list[Row]]]:
    """The first page of all that were sent, newest first; and every outstanding transfer."""
    before = yield calls.list_transfers(status="all")
    outstanding = []
    for status in (PENDING, PARTIAL):
        outstanding += yield from _list(status, found)
    # Last, so that it shows whatever was sent before the others were asked for.
    newest = yield calls.list_transfers(status="all")
    found.note(newest)
    # One that came in between and cannot be read may be outstanding; what was there before is in the other lists then.
    known = {row.id for row in _rows(before)}
    outstanding += [row for row in _rows(newest) if row.transfer is None and row.id not in known]
    return _rows(newest), outstanding


def sent_since(instant: float, known: Set[str], found: Found) -> Flow[list[Row]]:
    """The newest transfers, newest first, down to where most were sent before ``instant`` or are ``known``.

    Pages through ``status=all``, in which no row is skipped while transfers end (service.md, GET /v1/transfers).

    :param instant: in seconds since the epoch.
    """
    return (yield from _list("all", found, instant, known))


def _list(status: str, found: Found, since: float = float("-inf"), known: Set[str] = frozenset()) -> Flow[list[Row]]:
    """:raises MalformedAnswer: the listing does not end, so nobody can say what is not in it."""
    listed: dict[str, Row] = {}
    cursor: str | None = None
    fruitless = 0
    for _ in range(MOST_PAGES):
        page = yield calls.list_transfers(status=status, cursor=cursor)
        found.note(page)
        rows = _rows(page)
        before = len(listed)
        listed |= {row.id: row for row in rows}
        fruitless = 0 if len(listed) > before else fruitless + 1
        if page.next_cursor is None or _is_mostly_before(rows, since, known):
            return list(listed.values())
        if page.next_cursor == cursor or fruitless == FRUITLESS:
            break
        cursor = page.next_cursor
    raise MalformedAnswer("list: the listing does not end")


def _page_through(
    status: str, missing: set[str], found: Found, oldest: float, *, most: int | None = None, least: int = 0
) -> Generator[Call[Any], Any, int]:
    """Take out of ``missing`` what the pages of ``status`` show; the requests that this took.

    A page that cannot be read, or that the service fails at, shows nothing: what is missing is read by itself.

    :param oldest: when the oldest of the wanted transfers was sent.
    :param most: requests that may be spent.
    :param least: a page that shows fewer missing transfers is the last.
    """
    cursor: str | None = None
    spent = 0
    while missing and (most is None or spent < most):
        spent += 1
        try:
            page = yield calls.list_transfers(status=status, cursor=cursor)
        except (MalformedAnswer, ServerFault) as error:
            if isinstance(error, ServerFault) and error.status != 500:
                raise
            break
        found.note(page)
        shown = {transfer.id: transfer for transfer in page.data if transfer.id in missing}
        for transfer in shown.values():
            found.add(transfer)
        missing.difference_update(shown)
        is_last = len(shown) < least or _is_mostly_before(_rows(page), oldest)
        if is_last or page.next_cursor in (None, cursor):
            break
        cursor = page.next_cursor
    return spent


def _read(missing: Iterable[str], found: Found, failures: Mapping[str, tuple[int, float]]) -> Flow[None]:
    """Read each by itself.

    One transfer that cannot be read must not keep the others waiting; a service that is down is not asked for all.

    :raises CallError: the service has not answered anything.
    """
    troubled: dict[str, CallError] = {}
    in_a_row = 0
    for transfer_id in sorted(missing, key=lambda one: (failures.get(one, (0, 0.0)), one)):
        try:
            transfer = yield calls.get_transfer(transfer_id)
            found.add(structs.replace(transfer, id=transfer_id))
            found.answered, in_a_row = True, 0
        except InvalidDelivery as error:
            found.gone[transfer_id] = error
        except NotFound as error:
            found.gone[transfer_id] = error
            found.answered, in_a_row = True, 0
        except (InvalidApiKey, Forbidden, RateLimited):
            raise
        except CallError as error:
            troubled[transfer_id] = error
            in_a_row += 1
            if in_a_row == TROUBLES:
                found.untried = True
                break
    if troubled and not found.answered:
        found.in_vain |= troubled
        raise next(reversed(troubled.values()))
    found.troubled |= troubled


def _rows(page: TransferPage) -> list[Row]:
    """Its rows in their order; those that cannot even be named are left out."""
    rows: list[Row] = [Row(transfer.id, transfer) for transfer in page.data]
    for one in page.unreadable:  # in the order of their positions, so each insertion makes the next right
        rows.insert(one.position, Row(one.id, None))
    return [row for row in rows if row.id]


def _is_mostly_before(rows: list[Row], instant: float, known: Set[str] = frozenset()) -> bool:
    """Whether all that follows these rows was sent before ``instant``: some absurd times among them say nothing."""
    before = sum(row.id in known or ((sent := row.sent) is not None and sent < instant) for row in rows)
    return bool(rows) and 2 * before >= len(rows)
