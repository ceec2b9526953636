"""The module in which Airflow looks for the example Dags of this distribution (apache/airflow#66305)."""

from outbound_transfer import __path__ as __path__
