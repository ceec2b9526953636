"""Whether the service has sent a transfer like this delivery, which is nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from outbound_transfer.delivery.find_sent import find_sent
from outbound_transfer.delivery.memory import Likeness
from outbound_transfer.protocol.identity import Identity, KnownIdentity, known_identity_of, may_be_equal, may_have_had
from outbound_transfer.protocol.models import Transfer, UnreadableRow, to_epoch

if TYPE_CHECKING:
    from outbound_transfer.client import Client
    from outbound_transfer.delivery.task_facts import TaskFacts


@dataclass(frozen=True)
class SearchTarget:
    """The transfer that a delivery is to become.

    :ivar files: sizes in bytes, by name; None if they are unknown, so that any match.
    :ivar first: normalized addresses of the transfer that this delivers again, to some of them; None if it does not.
    """

    identity: Identity
    files: Mapping[str, int] | None
    first: frozenset[str] | None = None


class UnlikeTransfers:
    """What one try has fetched, and is another delivery. Else many items with the same people would be fetched anew in
    each search, and those of one minute could be too many calls to be made without a wait.
    """

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._of: tuple[SearchTarget, Likeness] | None = None

    def of(self, wanted: SearchTarget, likeness: Likeness) -> set[str]:
        """Return the ids; of another search than the last, none yet."""
        if self._of != (wanted, likeness):
            self._of, self._ids = (wanted, likeness), set()
        return self._ids


def find_like(
    client: Client,
    facts: TaskFacts,
    account: str,
    wanted: SearchTarget,
    likeness: Likeness,
    *,
    unlike: UnlikeTransfers,
    known: Collection[str] = (),
    is_of_other_key: Callable[[str], bool] = lambda transfer_id: False,  # noqa: ARG005
) -> Transfer | None:
    """Find a sent transfer that may be this delivery.

    :param unlike: of the try's searches before.
    :param known: ids of transfers that do not count: its own draft, and what it delivers again.
    :param is_of_other_key: whether a transfer was delivered under another delivery key.
    :raises MalformedResponse: the listing does not show what was sent.
    """

    def is_other(row: Transfer | UnreadableRow) -> bool:
        if row.id in known or is_of_other_key(row.id):
            return True
        if facts.delivery_key:
            return False
        if facts.was_made_by_another_run(account, row.id, to_epoch(row.sent_at)):
            return True
        is_equal = may_be_equal(known_identity_of(row), wanted.identity)
        return not is_equal and facts.was_made_by_another_task(account, row.id)

    is_exact = likeness is Likeness.EXACT
    return find_sent(
        client,
        wanted.identity,
        wanted.files,
        facts.earliest_send(),
        sizes=wanted.files if is_exact else None,
        is_like=_likeness(wanted, likeness),
        is_other=is_other,
        unlike=unlike.of(wanted, likeness),
    )


def _likeness(wanted: SearchTarget, likeness: Likeness) -> Callable[[KnownIdentity], bool]:
    """Return what tells whether a transfer to others may be this delivery too."""
    if wanted.first is not None:  # another try of a redelivery may have chosen others of the first transfer's
        return partial(may_have_had, wanted=wanted.identity, possible=wanted.first)
    if likeness is Likeness.SHARED_PEOPLE:
        return partial(may_have_had, wanted=wanted.identity, possible=None)
    return lambda known: False  # noqa: ARG005
