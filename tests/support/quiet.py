"""Silence for runs of tasks that are meant to fail."""

from __future__ import annotations

import logging


def be_quiet() -> None:
    import structlog
    from airflow.sdk.bases.operator import ExecutorSafeguard

    logging.disable(logging.CRITICAL)
    ExecutorSafeguard.test_mode = True  # operators are run outside of Airflow's task runner on purpose
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
