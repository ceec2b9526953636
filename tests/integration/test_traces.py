"""Spans of OpenTelemetry: each call, upload, poll and page is one, and none says who gets what."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import ProxyTracer, StatusCode

RUN = """
    from airflow.sdk import DAG
    from outbound_transfer.operators.transfer import DeliverFilesOperator
    from outbound_transfer.transfers.event_feed_to_sql import EventFeedToSqlOperator

    with DAG("traced", schedule=None):
        deliver = DeliverFilesOperator(
            task_id="deliver", subject="A quiet subject", message="A quiet message", recipients="ann@example.com",
            files={files!r}, wait=True, deferrable=True, poke_interval=1,
        )
        deliver >> EventFeedToSqlOperator(task_id="events", sql_conn_id="warehouse")
"""

#: What no span may contain, beside the keys.
PRIVATE = ("quiet", "ann@", "salaries")


@pytest.fixture
def spans(monkeypatch) -> Callable[[], list[ReadableSpan]]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # Tracers that were made before there is a provider ask for the real one.
    monkeypatch.setattr(ProxyTracer, "_tracer", property(lambda tracer: provider.get_tracer("tests")))
    return lambda: sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)


def facts(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("outbound_transfer."): value for name, value in (span.attributes or {}).items()}


def test_a_run_is_traced_and_no_span_says_who_gets_what(
    spans, run_dag, connection, sandbox, recipients_pick_up, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "w.db")}))
    for number, size in enumerate((300_000, 200_000)):
        (tmp_path / f"salaries{number}.csv").write_bytes(b"x" * size)
    sandbox.plan_faults(
        {"path": "/v1/transfers", "kind": "error", "status": 429, "retry_after": "1"},
        {"path": "/v1/transfers/*/files", "kind": "reset"},
    )

    run = run_dag(RUN.format(files=str(tmp_path / "salaries*.csv")))

    assert run.state == "success", run.states()
    seen = spans()
    assert all(span.name.startswith("outbound_transfer.") for span in seen)
    named = {name: [span for span in seen if span.name == f"outbound_transfer.{name}"] for name in ("create", "attach")}
    assert [facts(span).get("http.response.status_code") for span in named["create"]] == [429, 201]
    assert [span.status.status_code for span in named["create"]] == [StatusCode.ERROR, StatusCode.UNSET]
    assert facts(named["create"][0])["error.type"] == "429"
    of_http = {"http.request.method": "POST", "http.response.status_code": 201}
    assert facts(named["create"][1]) == of_http | {"account": sandbox.base_url.removeprefix("http://")}

    uploads = {span.context.span_id: span for span in seen if span.name == "outbound_transfer.upload"}
    assert sorted(facts(span)["file_size"] for span in uploads.values()) == [200_000, 300_000]
    assert [span.parent.span_id in uploads for span in named["attach"]] == [True] * 3, "one was repeated"
    failed = [span for span in named["attach"] if span.status.status_code is StatusCode.ERROR]
    assert [facts(span)["error.type"] for span in failed] == ["NoResponse"]

    polls = [span for span in seen if span.name == "outbound_transfer.poll"]
    assert polls
    assert all(span.parent is None and facts(span)["waiters"] == 1 for span in polls)
    (page,) = [span for span in seen if span.name == "outbound_transfer.page"]
    assert facts(page)["events"] >= 1
    assert [span.parent.span_id for span in seen if span.name == "outbound_transfer.events"] == [page.context.span_id]

    text = "".join(span.to_json() for span in seen)
    secrets = (sandbox.transfer_api_key, sandbox.event_api_key, *PRIVATE)
    assert [each for each in secrets if each in text] == []
