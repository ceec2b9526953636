"""Peers that quote secrets, against the real client, operators and poll: ``python -m resilience.fuzz.secret_fuzz``.

A case is: secrets, the one that the peer quotes, the place of its answer where it does, and who asks.
The peer is a server on a real socket. Then everything that the asker has left behind is judged: what it raised with all
that is behind it, each log at DEBUG, the task's state and XComs, the rendered fields, the trigger and the deliveries.
Airflow masks what the HTTP library logs and nothing else, as in the output of a worker.

    --seconds N   how long (60)      --seed S   where to begin (0)

Exits with 1 where a secret was found, after Hypothesis has printed the smallest case that shows one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from unittest import mock

import structlog
from airflow.sdk._shared.secrets_masker import SecretsMasker
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from outbound_transfer.client.client import Client, RetryPolicy
from outbound_transfer.hooks import connection
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.triggers.transfer import TransferTrigger
from outbound_transfer.waiting import poll
from resilience.fuzz.secret_forms import Secret, secrets, told_by
from resilience.fuzz.secret_places import FEED_PLACES, PLACES, Peer
from resilience.fuzz.secret_tasks import RECIPIENTS, SecretTask, rendered_fields
from support.provider import build_new_transfer
from support.raw_server import serving
from support.triggers import first_event

ONCE: Final = RetryPolicy(max_attempts=1, timeout=0, slot_timeout=0)


@dataclass(frozen=True)
class Case:
    """One case.

    :ivar told: the kind of the secret that the peer quotes.
    :ivar filler: characters before it, so that a cut may go through it.
    :ivar at: the call to which it is quoted; those before are answered well.
    """

    number: int
    told: str
    place: str
    asker: str
    recipients: str = "list"
    filler: int = 0
    at: int = 0

    def secrets(self) -> dict[str, Secret]:
        return secrets(self.number)

    def quoted(self) -> str:
        return "y" * self.filler + self.secrets()[self.told].value


@dataclass
class Left:
    """All that somebody may read afterwards: each text with where it stands."""

    texts: list[tuple[str, str]] = field(default_factory=list)

    def add(self, where: str, *values: Any) -> None:
        self.texts += [(where, value if isinstance(value, str) else repr(value)) for value in values]

    def error(self, error: BaseException | None) -> None:
        """An error and all that is behind it, shown by a traceback or not."""
        if error is not None:
            self.add("error", str(error), error.args, vars(error), "".join(traceback.format_exception(error)))
            self.error(error.__cause__)
            self.error(error.__context__)

    def database(self, file: Path) -> None:
        with closing(sqlite3.connect(file)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for (table,) in tables:
                # Events, and lines that are none, are kept as they came.
                if not table.endswith(("_events", "_rejected_lines")):
                    self.add(f"table {table}", *connection.execute(f'SELECT * FROM "{table}"').fetchall())


class Fuzz:
    """The askers, each with a peer of its own for each case."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "report.csv"
        self.file.write_bytes(b"a,b\n")
        self.counts: Counter[str] = Counter()

    def check(self, case: Case) -> None:
        """Play a case.

        :raises AssertionError: something that was left behind tells a secret.
        """
        left = Left()
        peer = Peer((PLACES | FEED_PLACES)[case.place](case.quoted()), case.at)
        with ExitStack() as stack:
            server = stack.enter_context(serving(peer.answer))
            masker = SecretsMasker()
            logged = stack.enter_context(_all_logs())
            stack.enter_context(self._airflow(case, server.url(), masker))
            ASKERS[case.asker](self, case, server.url(), left)
            left.add("log", *logged)
        self.counts[case.asker] += 1
        self.counts["quoted"] += peer.has_quoted
        for where, text in dict.fromkeys(left.texts):
            secret = told_by(text, case.secrets().values())
            assert not secret, f"{case}: the {secret.kind} is in the {where}: {text[:2_000]}"

    @contextmanager
    def _airflow(self, case: Case, url: str, masker: SecretsMasker) -> Iterator[None]:
        """Connections to the peer and to fresh databases; what is to be masked is told to ``masker``."""
        keys = case.secrets()
        peer = {
            "conn_type": "outbound_transfer",
            "host": url,
            "password": keys["transfer key"].value,
            "extra": {"event_api_key": keys["event key"].value, "timeout": 5, "verify": False},
        }
        for database in self.folder.glob("*.db*"):
            database.unlink()
        environment = {
            "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT": json.dumps(peer),
            "AIRFLOW_CONN_WAREHOUSE": json.dumps({"conn_type": "sqlite", "host": str(self.folder / "warehouse.db")}),
            "AIRFLOW_CONN_DELIVERIES": json.dumps({"conn_type": "sqlite", "host": str(self.folder / "deliveries.db")}),
            "AIRFLOW__OUTBOUND_TRANSFER__DELIVERIES_CONN_ID": "deliveries",
        }
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch.object(SecretsMasker, "add_mask", masker.add_mask),
            mock.patch.object(connection, "redact", masker.redact),
        ):
            yield


def ask_client(fuzz: Fuzz, case: Case, url: str, left: Left) -> None:
    """The client that workers have."""
    known = case.secrets()
    new = build_new_transfer(
        subject="S",
        recipients=[{"email": "ann@example.com", "phone": known["phone"].value}],
        security="question",
        security_question="Q?",
        security_answer=known["answer"].value,
    )
    hidden = (known["answer"].value, known["phone"].value)
    with OutboundTransferHook(policy=ONCE, secrets=hidden) as hook:
        calls = (
            lambda: hook.create_transfer(new),
            lambda: hook.get_transfer("t"),
            lambda: hook.send_transfer("t"),
            lambda: hook.list_transfers(),
            lambda: hook.read_events(),
        )
        for call in calls:
            try:
                call()
            except Exception as error:
                left.error(error)


def ask_deliver(fuzz: Fuzz, case: Case, url: str, left: Left) -> None:
    """``DeliverFilesOperator``, rendered as Airflow does."""
    known = case.secrets()
    context, recipients, native = RECIPIENTS[case.recipients](known["phone"].value)

    def make() -> Any:
        operator = DeliverFilesOperator(
            task_id="deliver",
            files=str(fuzz.file),
            subject="Report",
            recipients=recipients,
            security="question",
            security_question="Which?",
            security_answer="{{ answer }}",
        )
        operator.render_template_as_native_obj = native
        operator.render_template_fields({"answer": known["answer"].value, **context})
        left.add("rendered fields", *rendered_fields(operator).values())
        return operator

    task = SecretTask(make)
    try:
        left.add("return value", task.run())
    except Exception as error:
        left.error(error)
    left.add("state", *map(str, task.store.table.rows.values() if task.store else ()))
    left.add("xcom", *task.xcoms.values())
    with suppress(OSError):
        left.database(fuzz.folder / "deliveries.db")


def ask_events(fuzz: Fuzz, case: Case, url: str, left: Left) -> None:
    """``EventFeedToSqlOperator`` into SQLite."""
    task = SecretTask(lambda: EventFeedToSqlOperator(task_id="land", sql_conn_id="warehouse", max_rejected=0))
    try:
        left.add("return value", task.run())
    except Exception as error:
        left.error(error)
    left.database(fuzz.folder / "warehouse.db")


def ask_poll(fuzz: Fuzz, case: Case, url: str, left: Left) -> None:
    """The poll of the triggerer, to the end of a wait."""
    deadline = datetime.now(UTC) + timedelta(seconds=1)
    trigger = TransferTrigger("t", "outbound_transfer_default", 1.0, deadline.isoformat(), {})
    left.add("trigger", trigger.serialize(), vars(trigger))
    with mock.patch.object(poll, "LAST_CHANCE", 5.0):  # one poll begins, whatever becomes of it
        left.add("event", asyncio.run(first_event(trigger)))


def ask_test_connection(fuzz: Fuzz, case: Case, url: str, left: Left) -> None:
    """The button of the connection's form."""
    with mock.patch.dict(Client.__init__.__kwdefaults__, sleep=lambda _: None):
        left.add("answer of the form", OutboundTransferHook().test_connection())


ASKERS: Final[dict[str, Callable[[Fuzz, Case, str, Left], None]]] = {
    "client": ask_client,
    "deliver": ask_deliver,
    "events": ask_events,
    "poll": ask_poll,
    "test connection": ask_test_connection,
}

READS_FEED: Final = ("events", "client")

#: What each asker may be told of what it knows itself; a key is known to all.
TOLD: Final = {
    "client": ("transfer key", "event key", "answer", "phone"),
    "deliver": ("transfer key", "answer", "phone"),
    "events": ("event key",),
    "poll": ("transfer key",),
    "test connection": ("transfer key", "event key"),
}


@contextmanager
def _all_logs() -> Iterator[list[str]]:
    """Every record of every logger, at DEBUG."""
    lines: list[str] = []
    handler = logging.Handler(logging.DEBUG)
    formatter = logging.Formatter("%(name)s %(message)s")
    handler.emit = lambda record: lines.append(formatter.format(record))  # type: ignore[method-assign]
    root = logging.getLogger()
    level, handlers = root.level, root.handlers
    root.handlers = [handler]
    root.setLevel(logging.DEBUG)
    before = structlog.get_config()
    structlog.configure(processors=[_told_to(lines)], wrapper_class=structlog.make_filtering_bound_logger(0))
    try:
        yield lines
    finally:
        structlog.configure(**before)
        root.handlers = handlers
        root.setLevel(level)


def _told_to(lines: list[str]) -> Any:
    def tell(_: Any, __: str, event: dict[str, Any]) -> Any:
        text = str(event.pop("event", "")) % event.pop("positional_args", ()) if "positional_args" in event else event
        error = event.get("exc_info")
        error = sys.exc_info()[1] if error is True else error
        lines.append(f"{text} {event}")
        if isinstance(error, BaseException):
            lines.append("".join(traceback.format_exception(error)))
        raise structlog.DropEvent

    return tell


@st.composite
def cases(draw: st.DrawFn, only: Mapping[str, Sequence[Any]]) -> Case:
    """Any case that means something; ``only`` narrows fields of it."""

    def pick(name: str, choices: Iterable[Any]) -> Any:
        return draw(st.sampled_from([one for one in choices if one in only.get(name, (one,))]))

    asker = pick("asker", sorted(ASKERS))
    told = pick("told", TOLD[asker])
    return Case(
        number=draw(st.integers(0, 1_000_000)),
        told=told,
        place=pick("place", sorted(PLACES | FEED_PLACES) if asker in READS_FEED else sorted(PLACES)),
        asker=asker,
        recipients=pick("recipients", sorted(RECIPIENTS)) if asker == "deliver" else "list",
        filler=pick("filler", [0, 0, 0, *range(470, 500), 3_990]),
        at=draw(st.integers(0, 2)) if asker == "deliver" else 0,
    )


def search(number: int, examples: int, folder: Path, **only: Sequence[Any]) -> Counter[str]:
    """Play so many cases; the same for the same number.

    :param only: fields of :class:`Case`, each with what it may be.
    :raises AssertionError: a secret was found.
    """
    fuzz = Fuzz(folder)

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(only))
    def play(case: Case) -> None:
        fuzz.check(case)

    play()
    return fuzz.counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts, number, began = Counter[str](), arguments.seed, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < began + arguments.seconds:
            try:
                counts += search(number, 20, Path(folder))
            except AssertionError:
                traceback.print_exc()
                print(f"A secret was found with --seed {number}")
                return 1
            number += 1
    print("\n".join(f"{what:20}{count:>8,}" for what, count in sorted(counts.items())))
    print(f"No secret was found with the seeds {arguments.seed} to {number - 1}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
