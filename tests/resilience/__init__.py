"""Machines that break what a delivery stands on; each runs Airflow's own code, which finds a home of its own here."""

from support import airflow_home  # noqa: F401
