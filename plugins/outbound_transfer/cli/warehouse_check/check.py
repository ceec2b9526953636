"""The check: an ingestion is killed at steps all over it, and readers race for the pages of a feed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from outbound_transfer.cli.warehouse_check.processes import (
    TIMINGS,
    Kill,
    ProcessFailed,
    WarehouseProcess,
    interrupts_held,
)
from outbound_transfer.cli.warehouse_check.scripted_feed import (
    Contents,
    drop_tables,
    ingest,
    ingest_beside_others,
    read_contents,
)
from outbound_transfer.warehouse.database import Warehouse

#: Number of races.
RACES: Final = 3


@dataclass
class Finding:
    """What was found in one part of the check.

    :ivar wrong: a sentence for each loss, doubling or page that was half there.
    """

    name: str
    runs: int = 0
    wrong: list[str] = field(default_factory=list)


class WarehouseCheck:
    """Kills and races in a warehouse of its own, whose tables are dropped before each of them and at the end.

    Everything is done in processes of its own: a database's driver may not survive that its process is forked.

    :param warehouse: with a prefix that nothing else uses.
    :param log: called with a line of progress.
    """

    def __init__(self, warehouse: Warehouse, log: Callable[[str], None]) -> None:
        self._warehouse, self._log = warehouse, log

    def run(self, kills: int, readers: int) -> list[Finding]:
        """Return what was found.

        :raises ProcessFailed: the database refuses an ingestion that nothing disturbs.
        """
        with interrupts_held(), self._cleaned_up():
            self._log("An ingestion that nothing disturbs …")
            whole, steps = self._run_undisturbed()
            return [whole, *self._kill_all(kills, steps), self._race_all(readers)]

    @contextmanager
    def _cleaned_up(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._log("The tables of the check are dropped …")
            self._do(drop_tables)

    def _run_undisturbed(self) -> tuple[Finding, int]:
        steps = WarehouseProcess(self._warehouse, ingest, Kill()).result()
        # A probe (warehouse/probe.py) that is killed would leave a table of a name that nobody knows.
        self._warehouse.dialect.needs_probe = _is_probed  # type: ignore[method-assign]
        finding = Finding("undisturbed", 1)
        self._expect_complete(finding, "after one run")
        self._do(ingest)
        self._expect_complete(finding, "after a second run")
        return finding, int(steps)

    def _kill_all(self, kills: int, steps: int) -> list[Finding]:
        findings = {timing: Finding(f"killed {timing} a step") for timing in TIMINGS}
        for index in range(kills):
            kill = Kill(1 + index * steps // kills, TIMINGS[index % len(TIMINGS)])
            self._log(f"Kill {index + 1} of {kills}: {kill.timing} step {kill.at} of {steps} …")
            self._kill(kill, findings[kill.timing])
        return list(findings.values())

    def _kill(self, kill: Kill, finding: Finding) -> None:
        self._do(drop_tables)
        process = WarehouseProcess(self._warehouse, ingest, kill)
        finding.runs += 1
        try:
            process.result()
        except ProcessFailed as error:
            finding.wrong.append(f"step {kill.at}: the ingestion failed: {error}")
            return
        context = f"killed {kill.timing} step {kill.at} ({process.step})"
        found = self._contents()
        if not found.is_whole:
            finding.wrong.append(f"{context}: {found}")
        try:
            self._do(ingest)
        except ProcessFailed as error:
            finding.wrong.append(f"{context}: the next run failed: {error}")
        else:
            self._expect_complete(finding, f"{context}, after the next run")

    def _race_all(self, readers: int) -> Finding:
        finding = Finding(f"{readers} readers at once")
        for race in range(RACES):
            self._log(f"Race {race + 1} of {RACES}: {readers} readers, from the creation of the tables on …")
            finding.runs += 1
            self._race(readers, finding)
        return finding

    def _race(self, readers: int, finding: Finding) -> None:
        self._do(drop_tables)
        processes: list[WarehouseProcess] = []
        try:
            processes += (WarehouseProcess(self._warehouse, ingest_beside_others) for _ in range(readers))
            for process in processes:
                process.result()
        except ProcessFailed as error:
            finding.wrong.append(f"a reader failed: {error}")
        finally:
            for process in processes:
                process.stop()
        self._expect_complete(finding, "after the race")

    def _expect_complete(self, finding: Finding, context: str) -> None:
        found = self._contents()
        if not found.is_complete:
            finding.wrong.append(f"{context}: {found}")

    def _contents(self) -> Contents:
        found: Contents = self._do(read_contents)
        return found

    def _do(self, work: Callable[[Warehouse], Any]) -> Any:
        return WarehouseProcess(self._warehouse, work).result()


def _is_probed(tx: Any) -> bool:  # noqa: ARG001
    return False
