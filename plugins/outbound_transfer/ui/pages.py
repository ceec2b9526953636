"""The two pages: each reads the table of deliveries and renders its template. Call them in threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse

from outbound_transfer.delivery.place import require_deliveries
from outbound_transfer.links.transfer import find_web_url
from outbound_transfer.store.config import LOCAL_FILE, stores_recipients
from outbound_transfer.ui import picture, queries, view_models
from outbound_transfer.ui.filters import CHOICES, OUTCOMES, REFRESH_SECONDS, WINDOWS, Filter, window_start
from outbound_transfer.ui.queries import Row
from outbound_transfer.ui.view_models import DASH
from outbound_transfer.wording import format_duration

if TYPE_CHECKING:
    from jinja2 import Environment

#: Seconds to wait for other sessions: less than a page waits, so that the page can show the error.
_TIMEOUT: Final = 2.0


def deliveries_page(wanted: Filter, readable: Collection[str], now: datetime) -> HTMLResponse:
    """Render the page of all deliveries: see :func:`.queries.overview`.

    :raises NoDeliveriesTable: nothing says where the table of deliveries is.
    """
    place = require_deliveries()
    found = queries.overview(place.open(patience=0.0, timeout=_TIMEOUT), wanted, readable, now)
    counts, deliveries = found.get("counts", []), found.get("deliveries", [])
    return render(
        "deliveries.html",
        now=now,
        wanted=wanted,
        refresh=wanted.refresh * REFRESH_SECONDS,
        windows=WINDOWS,
        choices=CHOICES,
        has_table=bool(found),
        place=place,
        local_file=LOCAL_FILE,
        deliveries=_show(deliveries[: queries.PAGE_SIZE], now),
        has_more=len(deliveries) > queries.PAGE_SIZE,
        outcomes=OUTCOMES,
        totals=view_models.totals(counts, window_start(wanted.days, now)),
        picture=picture.draw(counts, now),
        feeds=[view_models.show_feed(row, now) for row in found.get("feeds", [])],
        max_rejected=queries.MAX_REJECTED,
    )


def task_page(task: Row, now: datetime) -> HTMLResponse:
    """Render the deliveries of one task instance: see :func:`.queries.task_deliveries`.

    :raises NoDeliveriesTable: nothing says where the table of deliveries is.
    """
    rows = queries.task_deliveries(require_deliveries().open(patience=0.0, timeout=_TIMEOUT), task)
    return render("task.html", now=now, refresh=0, deliveries=_show(rows, now, max_subject=2_000))


def _show(rows: Iterable[Row], now: datetime, **options: Any) -> list[view_models.Shown]:
    find, options["shows_recipients"] = cache(find_web_url), stores_recipients()
    return [view_models.show_delivery(row, now, find, **options) for row in rows]


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("outbound_transfer.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"timestamp": format_timestamp, "duration": format_duration}
    return environment


def format_timestamp(timestamp: datetime | None) -> str:
    """Return for example ``2026-01-31 23:59:59 UTC``, or a dash for None."""
    return timestamp.strftime("%Y-%m-%d %H:%M:%S UTC") if timestamp else DASH


def render(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a template as a response that is not cached."""
    html = _environment().get_template(template).render(**values)
    return HTMLResponse(html, status, headers={"Cache-Control": "no-store"})


def render_message(status: int, title: str, text: str) -> HTMLResponse:
    """Render a page with a message: what is wrong, and what to do."""
    return render("message.html", status, title=title, text=text, refresh=False)
