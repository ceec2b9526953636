"""Names of Airflow that only the tests use and that have moved between its versions."""

from __future__ import annotations

__all__ = ["DagBag"]

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # before 3.2
    from airflow.models.dagbag import DagBag
