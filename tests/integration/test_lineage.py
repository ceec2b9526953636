"""What OpenLineage's provider gets to know of an ingestion."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor
from airflow.sdk import TaskInstanceState

from outbound_transfer.operators.openlineage import dataset_of
from outbound_transfer.transfers.event_feed_to_iceberg import EventFeedToIcebergOperator
from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator
from outbound_transfer.transfers.transfers_to_sql import TransfersToSqlOperator

ACCOUNT = {"conn_type": "outbound_transfer", "host": "https://acme.example.com", "password": "hushkey"}
POSTGRES = {"conn_type": "postgres", "host": "db.example.com", "schema": "lake", "password": "hushdb"}
TABLES = {
    EventFeedToSqlOperator: ["events", "rejected_lines", "feed_cursor", "feed_polls"],
    TransfersToSqlOperator: ["transfers", "recipients"],
}


def lineage(operator: type, monkeypatch: pytest.MonkeyPatch, warehouse: Any, **arguments: Any) -> tuple[Any, Any]:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse if isinstance(warehouse, str) else json.dumps(warehouse))
    account = ACCOUNT | {"extra": {"event_api_key": "obs_hush"}}
    monkeypatch.setenv("AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT", json.dumps(account))
    task = operator(task_id="land", **arguments)
    found = DefaultExtractor(task).extract_on_complete(Mock(state=TaskInstanceState.SUCCESS))
    assert "hush" not in repr(found)
    (source,) = found.inputs
    assert source.namespace == "outbound-transfer://acme.example.com"
    return source.name, [(each.namespace, each.name) for each in found.outputs]


@pytest.mark.parametrize("operator", TABLES)
@pytest.mark.parametrize(
    ("warehouse", "schema", "namespace", "before"),
    [
        ({"conn_type": "sqlite", "host": "/data/warehouse.db"}, None, "sqlite://warehouse", ""),
        ({"conn_type": "duckdb", "host": "/data/warehouse.duckdb"}, "raw", "duckdb://warehouse", "raw."),
        (POSTGRES, "raw", "postgres://db.example.com:5432", "lake.raw."),
    ],
)
def test_the_account_is_the_input_and_the_tables_are_the_outputs(
    operator, warehouse, schema, namespace, before, monkeypatch
) -> None:
    given = {"sql_conn_id": "warehouse", "schema": schema, "table_prefix": "ot_"}
    tables = [(namespace, f"{before}ot_{table}") for table in TABLES[operator]]
    assert lineage(operator, monkeypatch, warehouse, **given) == (TABLES[operator][0], tables)


def test_without_a_schema_the_database_says_where_its_tables_are(postgres, monkeypatch) -> None:
    _, tables = lineage(TransfersToSqlOperator, monkeypatch, postgres.airflow_connection, sql_conn_id="warehouse")
    assert [name for _, name in tables] == [
        f"{postgres.name}.public.outbound_transfer_{table}" for table in TABLES[TransfersToSqlOperator]
    ]


def test_a_table_of_a_lake_is_named_by_its_connection(monkeypatch) -> None:
    given = {"iceberg_conn_id": "warehouse", "table": "lake.events"}
    found = lineage(EventFeedToIcebergOperator, monkeypatch, {"conn_type": "iceberg"}, **given)
    assert found == ("events", [("iceberg://warehouse", "lake.events")])


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
