"""Airflow's own StatsD client, set up as the task runner does it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils


@contextmanager
def stats_to(port: int) -> Iterator[None]:
    options = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(port), "INFLUXDB_ENABLED": "True"}
    settings = {f"AIRFLOW__METRICS__STATSD_{name}": value for name, value in options.items()}
    opened: list[Any] = []

    def factory() -> Any:
        opened.append(stats_utils.get_stats_factory()())
        return opened[-1]

    try:
        with mock.patch.dict(os.environ, settings):
            stats.initialize(factory=factory, export_legacy_names=False)
            yield
    finally:
        stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
        for logger in opened:
            logger.statsd.close()
