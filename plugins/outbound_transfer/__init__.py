"""Airflow provider for the Outbound Transfer Service: deliver files once, wait cheaply, land every event."""

__version__ = "0.1.0"
