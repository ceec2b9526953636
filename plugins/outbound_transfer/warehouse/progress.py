"""What a task that drains the feed counts; all of it that survives a deferral."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec

from outbound_transfer.protocol.feed import Page

#: Types are the feed's to name: neither their number nor their length may swell a task's state.
MAX_TYPES: Final = 50
MAX_TYPE_LENGTH: Final = 100
OTHER_TYPES: Final = "(other types)"

Count = Annotated[int, msgspec.Meta(ge=0)]


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts over the pages that this task has landed.

    :ivar events: events of these pages; ``new_events`` of them were not in the warehouse before.
    :ivar cursor_from: where the first page began, ``cursor_to`` where the last one ended; None before the first.
    :ivar has_more: whether the feed had more after the last page.
    :ivar types: events by type.
    :ivar waited: seconds that the call for the next page has spent in waits so far.
    """

    pages: Count = 0
    events: Count = 0
    new_events: Count = 0
    rejected: Count = 0
    cursor_from: Count | None = None
    cursor_to: Count | None = None
    has_more: bool = True
    types: dict[str, Count] = {}
    waited: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    def after(self, page: Page, new_events: int) -> Progress:
        """With a page that was landed."""
        return Progress(
            pages=self.pages + 1,
            events=self.events + len(page.events),
            new_events=self.new_events + new_events,
            rejected=self.rejected + len(page.rejected),
            cursor_from=page.cursor if self.cursor_from is None else self.cursor_from,
            cursor_to=page.next_cursor,
            has_more=page.has_more,
            types=_counted(self.types, page),
        )

    def __str__(self) -> str:
        return (
            f"Landed {self.events} events ({self.new_events} new) and {self.rejected} rejected lines of {self.pages} "
            f"pages; cursor {self.cursor_from} to {self.cursor_to}, {'more to come' if self.has_more else 'caught up'}"
        )

    def as_kwargs(self) -> dict[str, Any]:
        """For a deferral."""
        return {"progress": msgspec.to_builtins(self)}

    def summary(self) -> dict[str, Any]:
        """For an XCom."""
        summary: dict[str, Any] = msgspec.to_builtins(self)
        del summary["waited"]
        return summary


def progress_of(progress: Any) -> Progress:
    """What a deferral brought back.

    :raises msgspec.ValidationError: it is not what :meth:`Progress.as_kwargs` gave.
    """
    return msgspec.convert(progress, Progress)


def _counted(types: dict[str, int], page: Page) -> dict[str, int]:
    counted = dict(types)
    for kind, count in Counter([event.type for event in page.events]).items():
        shown = kind[:MAX_TYPE_LENGTH]
        if shown not in counted and len(counted) >= MAX_TYPES:
            shown = OTHER_TYPES
        counted[shown] = counted.get(shown, 0) + count
    return counted


def feed_name(base_url: str) -> str:
    """The feed of the account at an address: ``account.example.com``, with a port or path where there is one.

    The site address is the account's identity (service.md, first paragraph); unlike a connection's id it stays when
    the connection is renamed, and is the same for two connections to one account, whose cursor is one.
    """
    url = urlsplit(base_url)
    default = {"https": 443, "http": 80}.get(url.scheme)
    port = f":{url.port}" if url.port not in (None, default) else ""
    host = url.hostname or ""
    return f"[{host}]{port}{url.path.rstrip('/')}" if ":" in host else f"{host}{port}{url.path.rstrip('/')}"
