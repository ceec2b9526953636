"""What OpenLineage's provider gets to know of an ingestion."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.sdk import TaskInstanceState

from outbound_transfer.operators.openlineage import dataset_of
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator

WAREHOUSES = {
    "sqlite": {"conn_type": "sqlite", "host": "/data/warehouse.db"},
    "duckdb": {"conn_type": "duckdb", "host": "/data/warehouse.duckdb"},
    "postgres": {"conn_type": "postgres", "host": "db.example.com", "schema": "lake", "password": "hushdb"},
}
INGESTIONS = {
    "events": (EventFeedToSqlOperator, ["events", "rejected_lines", "feed_cursor", "feed_polls"]),
    "transfers": (TransfersToSqlOperator, ["transfers", "recipients"]),
}


@pytest.mark.parametrize("source", INGESTIONS)
@pytest.mark.parametrize(
    ("warehouse", "schema", "namespace", "before"),
    [
        ("sqlite", None, "sqlite://warehouse", ""),
        ("duckdb", "raw", "duckdb://warehouse", "raw."),
        ("postgres", "raw", "postgres://db.example.com:5432", "lake.raw."),
    ],
)
def test_the_account_is_the_input_and_the_tables_are_the_outputs(
    source, warehouse, schema, namespace, before, monkeypatch
) -> None:
    account = {
        "conn_type": "outbound_transfer",
        "host": "https://acme.example.com",
        "password": "hushkey",
        "extra": {"event_api_key": "obs_hush"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(WAREHOUSES[warehouse]))
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps(account))
    operator_class, tables = INGESTIONS[source]
    operator = operator_class(task_id="land", sql_conn_id="warehouse", schema=schema, table_prefix="ot_")

    lineage = DefaultExtractor(operator).extract_on_complete(Mock(state=TaskInstanceState.SUCCESS))

    assert [(each.namespace, each.name) for each in lineage.inputs] == [
        ("outbound-transfer://acme.example.com", source)
    ]
    assert [(each.namespace, each.name) for each in lineage.outputs] == [
        (namespace, f"{before}ot_{table}") for table in tables
    ]
    assert "hush" not in repr(lineage)


def test_without_a_schema_the_database_says_where_its_tables_are(postgres, monkeypatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", postgres.airflow_connection)
    account = {"conn_type": "outbound_transfer", "host": "https://acme.example.com"}
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps(account))
    operator = TransfersToSqlOperator(task_id="land", sql_conn_id="warehouse")
    lineage = DefaultExtractor(operator).extract_on_complete(Mock(state=TaskInstanceState.SUCCESS))
    assert [each.name for each in lineage.outputs] == [
        f"{postgres.name}.public.outbound_transfer_{table}" for table in ("transfers", "recipients")
    ]


@pytest.mark.parametrize(
    ("location", "namespace", "name"),
    [
        ("/data/a b#1?.csv", "file", "/data/a b#1?.csv"),
        ("/data/x/../a.csv", "file", "/data/a.csv"),
        ("s3://finance/2026/summary.xlsx", "s3://finance", "2026/summary.xlsx"),
        ("s3://a_connection@finance/summary.xlsx", "s3://finance", "summary.xlsx"),
    ],
)
def test_a_delivered_file_is_named_as_openlineage_names_files(location, namespace, name) -> None:
    dataset = dataset_of(location)
    assert (dataset.namespace, dataset.name) == (namespace, name)
