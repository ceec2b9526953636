"""Draw what the analysts' views say of a month of invented transfers: docs/images/views.svg (`make views`).

The tables are filled as TransfersToSqlOperator fills them, in SQLite, and the views are those of include/sql.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from outbound_transfer.protocol.models import Recipient, Transfer
from outbound_transfer.ui.plots import Plot, bars, pickups
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.transfers import TransferTables

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = REPOSITORY / "docs/images/views.svg"
NOW: Final = datetime(2026, 3, 31, 12, tzinfo=timezone.utc)
DAYS: Final = 30
WINDOW: Final = timedelta(days=7)
COLORS: Final = {
    "complete": "#22a35a",
    "waiting": "#3b82f6",
    "expired": "#f0a020",
    "canceled": "#94a3b8",
    "time": "#3b82f6",
}
OUTCOMES: Final = ("complete", "waiting", "expired", "canceled")


def transfers() -> Iterator[Transfer]:
    """A month of an account's; the same at each call."""
    chance = random.Random(7)  # noqa: S311  # of a picture
    for day in range(DAYS):
        weekend = (NOW - timedelta(days=DAYS - 1 - day)).weekday() >= 5
        for _ in range(chance.randint(2, 5) if weekend else chance.randint(14, 24)):
            sent = NOW - timedelta(days=DAYS - 1 - day, hours=chance.uniform(0, 4))
            yield _transfer(chance, sent)


def _transfer(chance: random.Random, sent: datetime) -> Transfer:
    picked = [sent + timedelta(hours=chance.lognormvariate(2.6, 1.7)) for _ in range(chance.randint(1, 3))]
    seen = [at if at < min(NOW, sent + WINDOW) else None for at in picked]
    status = "complete" if all(seen) else "expired" if sent + WINDOW < NOW else "partial" if any(seen) else "pending"
    if status != "complete" and chance.random() < 0.1:
        status = "canceled"
    people = tuple(Recipient(f"ann{n}@example.com", "Ann", at and at.isoformat()) for n, at in enumerate(seen))
    expires = (sent + WINDOW).isoformat()
    return Transfer(f"t{chance.getrandbits(48):x}", status, "Report", expires, None, people, None, sent.isoformat())


def views(file: Path) -> sqlite3.Connection:
    """A warehouse with the month's transfers and the views."""
    hook = SimpleNamespace(dialect_name="sqlite", placeholder="?", get_conn=lambda: sqlite3.connect(file))
    tables = TransferTables(
        Warehouse(cast(Any, hook)), "account.example.com", "outbound_transfer_default", clock=lambda: NOW
    )
    tables.open()
    tables.save(list(transfers()), NOW)
    connection = sqlite3.connect(file)
    connection.executescript((REPOSITORY / "include/sql/sqlite.sql").read_text())
    return connection


def picture() -> str:
    with tempfile.TemporaryDirectory() as folder, closing(views(Path(folder) / "warehouse.db")) as warehouse:
        days = warehouse.execute(
            f"SELECT sent_on, {', '.join(OUTCOMES)} FROM outbound_transfer_funnel_by_day ORDER BY sent_on"  # noqa: S608
        ).fetchall()
        waits = pickups(warehouse.execute("SELECT sent_at, picked_up_at FROM outbound_transfer_time_to_pickup"))
    assert waits
    funnel = bars([day[0][5:] for day in days], [day[1:] for day in days], OUTCOMES)
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 330" font-family="system-ui, sans-serif" '
            'font-size="11" fill="#475569" role="img" aria-label="Transfers by day and outcome; time to pickup">',
            '<rect width="900" height="330" rx="8" fill="#fff"/>',
            *_panel(funnel, 20, 520, "outbound_transfer_funnel_by_day", every=7),
            *_legend(20),
            *_panel(waits.plot, 570, 310, "outbound_transfer_time_to_pickup", every=1),
            f'<text x="570" y="52">half within {waits.median}, nine of ten within {waits.most}</text>',
            "</svg>\n",
        ]
    )


def _panel(plot: Plot, left: int, width: int, title: str, every: int) -> Iterator[str]:
    top, height = 70, 170
    yield f'<text x="{left}" y="30" font-size="13" font-weight="600" fill="#0f172a">{title}</text>'
    for value, y in ((plot.top, top), (0, top + height)):
        yield f'<path d="M{left + 24} {y}h{width - 24}" stroke="#e2e8f0"/>'
        yield f'<text x="{left + 18}" y="{y + 4}" text-anchor="end">{value}</text>'
    across = (width - 24) / 100
    for number, bar in enumerate(plot.bars):
        for part in bar.parts:
            box = (
                left + 24 + part.x * across,
                top + part.y * height / 100,
                part.width * across,
                part.height * height / 100,
            )
            x, y, wide, high = (f"{each:.1f}" for each in box)
            yield f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{COLORS[part.kind]}"/>'
        if number % every == 0:
            x = f"{left + 24 + (number + 0.5) * 100 / len(plot.bars) * across:.1f}"
            turn = "" if every > 1 else f' transform="rotate(-40 {x} 254)"'
            anchor = "middle" if every > 1 else "end"
            yield f'<text x="{x}" y="{254 if every == 1 else 258}" text-anchor="{anchor}"{turn}>{bar.label}</text>'


def _legend(left: int) -> Iterator[str]:
    for number, name in enumerate(OUTCOMES):
        x = left + 24 + number * 90
        yield f'<rect x="{x}" y="43" width="10" height="10" rx="2" fill="{COLORS[name]}"/>'
        yield f'<text x="{x + 15}" y="52">{name}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture())
    sys.stdout.write(f"{PICTURE.relative_to(REPOSITORY)}\n")
