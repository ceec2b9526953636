"""Airflow's own StatsD client, set up as the task runner does it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

try:
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics.statsd_logger import get_statsd_logger
except ImportError:  # before 3.2
    from airflow import stats
    from airflow.metrics import statsd_logger

    get_statsd_logger = partial(statsd_logger.get_statsd_logger, None)


@contextmanager
def stats_to(port: int) -> Iterator[None]:
    options = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(port), "INFLUXDB_ENABLED": "True"}
    settings = {f"AIRFLOW__METRICS__STATSD_{name}": value for name, value in options.items()}
    opened: list[Any] = []

    def factory() -> Any:
        opened.append(get_statsd_logger())
        return opened[-1]

    try:
        with mock.patch.dict(os.environ, settings):
            if hasattr(stats, "initialize"):
                stats.initialize(factory=factory, export_legacy_names=False)
                yield
            else:  # before 3.3
                with mock.patch.multiple(stats.Stats, factory=factory, instance=None):
                    yield
    finally:
        if hasattr(stats, "initialize"):
            from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

            stats.initialize(factory=get_stats_factory(), export_legacy_names=True)
        for logger in opened:
            logger.statsd.close()
