"""What the cluster goes through: deliveries, an ingestion, the loss of a worker and of a triggerer; and the verdict."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from outbound_transfer.ui.view_models import files_of

from .cluster import Cluster
from .native import Container

Key = tuple[str, str, str, int]

#: Events that are in the feed beforehand: pages enough for waits between them.
BACKLOG = 2_500
#: Sent before the worker is lost.
SENT_BEFORE_LOSS = 15
#: Waits in flight before a triggerer is lost.
WAITS_BEFORE_LOSS = 25
STAGE_TIMEOUT = 420.0
KEY = "dag_id, run_id, task_id, map_index"
WAITS_BY_TRIGGERER = """
SELECT job.hostname AS host, count(*) AS waits FROM task_instance
JOIN trigger ON trigger.id = task_instance.trigger_id JOIN job ON job.id = trigger.triggerer_id
WHERE task_instance.state = 'deferred' AND task_instance.task_id = 'delivery.wait_for_pickup' GROUP BY job.hostname
"""


@dataclass(frozen=True)
class Delivery:
    """One delivery of one run."""

    subject: str
    recipient: str
    paths: tuple[Path, ...]

    def conf(self) -> dict[str, Any]:
        return {"subject": self.subject, "recipients": [self.recipient], "files": [str(path) for path in self.paths]}


@dataclass
class Losses:
    """What was lost with the killed containers."""

    worker: Container | None = None
    #: The tasks that ran on the worker.
    tasks: list[Key] = field(default_factory=list)
    #: Sends that were on their way when it was lost.
    sends: int = 0
    triggerer: Container | None = None
    #: Waits for pickup that the triggerer held.
    waits: int = 0
    #: Seconds until the other triggerer had all of them.
    taken_over: float = 0.0


class ClusterScenario:
    """``count`` deliveries in ``runs`` runs of ``deliver_files``, on a cluster that is up."""

    def __init__(self, cluster: Cluster, count: int, runs: int, rate: int) -> None:
        self.cluster, self.reporter, self.sandbox = cluster, cluster.reporter, cluster.sandbox
        self.rate, self.losses = rate, Losses()
        self.deliveries = write_deliveries(cluster.outbox, count)
        self.batches = [self.deliveries[number::runs] for number in range(runs)]
        self.run_ids: list[str] = []
        self._collected: set[str] = set()

    def begin(self) -> None:
        self.sandbox.patch_account(requests_per_window=self.rate, feed_interval_seconds=10)
        self.sandbox.add_events(BACKLOG)
        airflow = self.cluster.airflow
        for _ in self._wait_for(lambda: "Airflow to read the Dags"):
            if all(map(airflow.has_dag, ("deliver_files", "ingest_event_feed"))):
                break
        airflow.unpause("ingest_event_feed")
        airflow.unpause("deliver_files")
        confs = [{"deliveries": [delivery.conf() for delivery in batch]} for batch in self.batches]
        self.run_ids = [airflow.trigger("deliver_files", conf) for conf in confs]
        self.reporter.say(f"{len(self.deliveries)} deliveries are asked for, in {len(self.run_ids)} runs", "bold")

    def lose_worker(self) -> None:
        """While sends are on their way: every other one has landed without an answer, the rest have not landed yet."""
        for _ in self._wait_for(lambda: f"{SENT_BEFORE_LOSS} sends ({len(self.sandbox.sent())} so far)"):
            if len(self.sandbox.sent()) >= SENT_BEFORE_LOSS:
                break
        effects = islice(cycle(("after", "before")), self._slots())
        holds = [{"kind": "hold", "path": "*/send", "effect": effect} for effect in effects]
        self.sandbox.plan_faults(*holds)
        for _ in self._wait_for(lambda: f"every slot to send ({self._held()} of {len(holds)})"):
            if self._held() >= len(holds) - 1:  # the ingestion may have one
                break
        workers = self.cluster.containers["worker"]
        lost, tasks = max(((worker, self._running_on(worker)) for worker in workers), key=lambda pair: len(pair[1]))
        self.losses.worker, self.losses.tasks, self.losses.sends = lost, tasks, self._held()
        self.cluster.kill(lost)
        self.sandbox.clear_faults()  # what is held goes on, also where nobody hears the answer
        self.reporter.say(
            f"{lost.name} is lost, with {len(tasks)} tasks: {', '.join(map(_told, tasks))}", "bold yellow"
        )

    def lose_triggerer(self) -> None:
        what = f"{WAITS_BEFORE_LOSS} waits in both triggerers"
        for _ in self._wait_for(lambda: f"{what} ({self._states()})"):
            waits = self._waits()
            if len(waits) == 2 and sum(waits.values()) >= WAITS_BEFORE_LOSS:
                break
        lost = max(self.cluster.containers["triggerer"], key=lambda triggerer: waits[triggerer.name])
        self.losses.triggerer, self.losses.waits = lost, waits[lost.name]
        self.cluster.kill(lost)
        since = self.reporter.elapsed
        self.reporter.say(f"{lost.name} is lost, with {waits[lost.name]} of {sum(waits.values())} waits", "bold yellow")
        for _ in self._wait_for(lambda: f"the other triggerer to take over its {self._waits()[lost.name]} waits"):
            if not self._waits()[lost.name]:
                break
        self.losses.taken_over = self.reporter.elapsed - since
        self.reporter.say(f"The other triggerer has its waits after {self.losses.taken_over:.0f} s")

    def finish(self) -> None:
        """The recipients collect all there is, until the runs are over; then the last events are landed."""
        for _ in self._wait_for(lambda: f"the runs to end ({self._states()})"):
            self.collect()
            if all(self._state("deliver_files", run_id) in ("success", "failed") for run_id in self.run_ids):
                break
        self.last_event = self.sandbox.add_events(1)
        run_id = self.cluster.airflow.trigger("ingest_event_feed", {})
        for _ in self._wait_for(lambda: f"the last ingestion ({len(self.landed())} of {self.last_event} events)"):
            if self._state("ingest_event_feed", run_id) in ("success", "failed"):
                break

    def collect(self) -> None:
        """Every recipient of what has been sent by now picks up."""
        for transfer_id in set(self.sandbox.sent()) - self._collected:
            for recipient in self.sandbox.transfer(transfer_id)["recipients"]:
                self.sandbox.pickup(transfer_id, recipient["email"])
            self._collected.add(transfer_id)

    def _wait_for(self, what: Callable[[], str]) -> Iterator[None]:
        for _ in self.reporter.wait_for(what, STAGE_TIMEOUT, log=self.cluster.folder / "logs"):
            self.cluster.processes.check()
            yield

    def _slots(self) -> int:
        worker = self.cluster.services["worker"]
        return worker.replicas * int(worker.environment["AIRFLOW__CELERY__WORKER_CONCURRENCY"])

    def _held(self) -> int:
        return sum(row["state"] == "held" for row in self.sandbox.faults())

    def _running_on(self, worker: Container) -> list[Key]:
        query = f"SELECT {KEY} FROM task_instance WHERE state = 'running' AND hostname = %s"
        return [_key(row) for row in self.cluster.metadata.execute(query, [worker.name])]

    def _waits(self) -> Counter[str]:
        return Counter({row["host"]: row["waits"] for row in self.cluster.metadata.execute(WAITS_BY_TRIGGERER)})

    def _state(self, dag_id: str, run_id: str) -> str:
        query = "SELECT state FROM dag_run WHERE dag_id = %s AND run_id = %s"
        return next(str(row["state"]) for row in self.cluster.metadata.execute(query, [dag_id, run_id]))

    def _states(self) -> str:
        query = "SELECT coalesce(state, 'none') AS state FROM task_instance WHERE dag_id = 'deliver_files'"
        counts = Counter(row["state"] for row in self.cluster.metadata.execute(query))
        return ", ".join(f"{count} {state}" for state, count in counts.items())

    def landed(self) -> list[int]:
        """The ids of the warehouse's events; the sandbox counts them from 1."""
        query = "SELECT event_id FROM outbound_transfer_events"
        return sorted(int(row["event_id"]) for row in self.cluster.warehouse.execute(query))

    def violations(self) -> Iterator[str]:
        """What breaks a promise, or was not put to the test."""
        for run_id in self.run_ids:
            if (state := self._state("deliver_files", run_id)) != "success":
                yield f"deliver_files {run_id}: {state}"
        yield from self._wrong_deliveries()
        yield from self._wrong_waits()
        yield from self._wrong_rows()
        landed, events = self.landed(), range(1, self.last_event + 1)
        if landed != list(events):
            missing, twice = set(events) - set(landed), len(landed) - len(set(landed))
            yield f"{len(missing)} events have not landed, {twice} have landed again, of {self.last_event}"
        yield from self._wrong_losses()

    def _wrong_deliveries(self) -> Iterator[str]:
        sent = self.sandbox.sent()
        transfers: dict[str, list[str]] = {}
        for transfer_id in sent:
            transfers.setdefault(self.sandbox.transfer(transfer_id)["subject"], []).append(transfer_id)
        for delivery in self.deliveries:
            ids = transfers.pop(delivery.subject, [])
            if len(ids) != 1:
                yield f"{delivery.subject} was sent {len(ids)} times: {ids}"
            for transfer_id in ids:
                try:
                    contents = {path.name: path for path in delivery.paths}
                    self.sandbox.assert_delivered(transfer_id, contents, delivery.recipient)
                except AssertionError as error:
                    yield f"{delivery.subject}: {error}"
        if transfers:
            yield f"nobody asked for {transfers}"

    def _wrong_waits(self) -> Iterator[str]:
        query = f"SELECT {KEY}, state FROM task_instance WHERE task_id = 'delivery.wait_for_pickup'"
        states = Counter(row["state"] for row in self.cluster.metadata.execute(query))
        if states != {"success": len(self.deliveries)}:
            yield f"waits for pickup: {dict(states)}"

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table of deliveries, which is in the warehouse."""
        query = "SELECT * FROM outbound_transfer_deliveries WHERE dag_id <> ''"
        return self.cluster.warehouse.execute(query).fetchall()

    def _wrong_rows(self) -> Iterator[str]:
        rows = {row["transfer_id"]: row for row in self.rows()}
        digests = {each.subject: {path.name: _sha256(path) for path in each.paths} for each in self.deliveries}
        for transfer_id in self.sandbox.sent():
            row = rows.pop(transfer_id, None)
            if row is None or (row["status"], row["picked_up_count"]) != ("complete", row["recipient_count"]):
                yield f"the table says of {transfer_id}: {row}"
            elif {each["name"]: each["sha256"] for each in files_of(row["memory"])} != digests[row["subject"]]:
                yield f"the table has other digests of {transfer_id}: {row['memory']}"
        if rows:
            yield f"the table has {list(rows)}, which were not sent"

    def _wrong_losses(self) -> Iterator[str]:
        """A loss that cost nothing proves nothing."""
        if not any(task == "delivery.deliver" for _, _, task, _ in self.losses.tasks):
            yield "no delivery ran on the lost worker"
        if not self.losses.waits:
            yield "no wait was in the lost triggerer"
        for name in ("worker", "triggerer"):
            for container in self.cluster.containers[name]:
                lost = container in (self.losses.worker, self.losses.triggerer)
                if self.cluster.is_healthy(container) == lost:
                    yield f"the health check of {container.name} says {'healthy' if lost else 'unhealthy'}"

    def figures(self) -> Iterator[tuple[str, object]]:
        """A table's lines."""
        yield "deliveries sent", len(self.sandbox.sent())
        yield "events in the warehouse", len(self.landed())
        yield "tasks lost with the worker", ", ".join(map(_told, self.losses.tasks))
        yield "sends on their way at that moment", self.losses.sends
        yield "waits lost with the triggerer", f"{self.losses.waits}, taken over after {self.losses.taken_over:.0f} s"
        yield "requests", f"{len(self.sandbox.requests())}, at most {self.rate} a minute are allowed"


def write_deliveries(outbox: Path, count: int) -> list[Delivery]:
    """Each with two files that no other has."""
    deliveries = []
    for number in range(count):
        folder = outbox / f"{number:03}"
        folder.mkdir(parents=True)
        paths = (folder / "figures.csv", folder / "report.pdf")
        for path, size in zip(paths, (2_000, 200_000), strict=True):
            path.write_bytes(os.urandom(size))
        deliveries.append(Delivery(f"Report {number:03}", f"ann{number:03}@example.com", paths))
    return deliveries


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _key(row: dict[str, Any]) -> Key:
    return row["dag_id"], row["run_id"], row["task_id"], row["map_index"]


def _told(key: Key) -> str:
    _dag_id, run_id, task_id, map_index = key
    return f"{task_id}[{map_index}] of …{run_id[-12:-6]}"  # which runs differ in
