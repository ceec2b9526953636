"""The page in Airflow's own application: who may see what, and what it says where there is nothing to show."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from outbound_transfer.ledger.config import load_config, open_tables
from outbound_transfer.ui import app as ui
from outbound_transfer.ui.threads import BoundedThreadRunner
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.deliveries import DeliveryFailure, DeliveryTables, TaskRef
from outbound_transfer.warehouse.local_file import LOCAL_FILE
from outbound_transfer.warehouse.schema import LEDGER, ensure_schema
from outbound_transfer.warehouse.tables import DELIVERIES, DELIVERY_RECIPIENTS, RECIPIENTS
from support import airflow_home
from support import sample_rows as ledger
from support.warehouses import sqlite_hook

PAGE = "/outbound-transfer/deliveries"
TASK = "/outbound-transfer/task"
OF_TASK = {"run_id": "r", "task_id": "deliver", "map_index": "{MAP_INDEX}"}
KEY = "tk_secret_0123456789"
HOSTILE = '"><script>alert(1)</script>\u202e\x07'


@pytest.fixture(scope="module")
def airflow(airflow_database: None) -> Iterator[TestClient]:
    """Airflow's application as its API server makes it, with two DAGs in its database."""
    from airflow.api_fastapi.app import create_app
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        if session.get(DagBundleModel, "of-the-page") is None:
            session.add(DagBundleModel(name="of-the-page"))
            session.flush()
        for dag_id in ("open", "secret"):
            session.merge(DagModel(dag_id=dag_id, bundle_name="of-the-page"))
    with TestClient(create_app(apps="core"), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def as_user(airflow: TestClient, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A GET by a user who may read the DAG "open" alone; of the rest the simple auth manager's roles decide."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    manager: Any = get_auth_manager()
    decide = type(manager).is_authorized_dag

    def is_authorized_dag(self: Any, *, details: Any = None, **rest: Any) -> bool:
        return decide(self, details=details, **rest) and details is not None and details.id == "open"

    monkeypatch.setattr(type(manager), "is_authorized_dag", is_authorized_dag)

    def get(path: str, role: str | None = "viewer", **params: str) -> Any:
        token = manager.generate_jwt(SimpleAuthManagerUser(username="vera", role=role))
        return airflow.get(
            path, params=params or None, headers={"Authorization": f"Bearer {token}"}, follow_redirects=False
        )

    return get


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """An application of its own for this test, less patient than a person."""

    def make(max_threads: int = 4, seconds: float = 30) -> None:
        application = ui.create_application(BoundedThreadRunner(max_threads, seconds))
        monkeypatch.setattr(ui, "application", lambda: application)

    make()
    return make


@pytest.fixture
def set_ledger(monkeypatch: pytest.MonkeyPatch, fresh: Any) -> Callable[[str], None]:
    def make(connection: str) -> None:
        monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "page_ledger")
        monkeypatch.setenv("AIRFLOW_CONN_PAGE_LEDGER", connection)

    return make


@pytest.fixture
def warehouse(set_ledger: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    file = tmp_path / "warehouse.db"
    set_ledger(json.dumps({"conn_type": "sqlite", "host": str(file)}))
    service = {"conn_type": "outbound_transfer", "host": "https://account.example.com", "password": KEY}
    for conn_id, web_url in (("plain", ""), ("set", "https://app.example.com/x"), ("hostile", "javascript:alert(1)")):
        value = json.dumps(service | {"extra": {"web_url": web_url, "event_api_key": f"obs_{KEY}"}})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)
    return Warehouse(sqlite_hook(file))


def fill(warehouse: Warehouse) -> None:
    now = datetime.now(UTC)
    ledger.make_tables(warehouse, now)
    of_task: dict[str, Any] = {"run_id": "r", "task_id": "deliver"}
    rows = [
        ledger.delivery("t-open", now, dag_id="open", conn_id="plain", **of_task),
        ledger.delivery("t-set", now, dag_id="open", conn_id="set", run_id="../..", task_id="deliver"),
        ledger.delivery("t-secret", now, dag_id="secret", conn_id="set", **of_task),
        ledger.delivery("t-gone", now, dag_id="of no DAG any more", conn_id="set", **of_task),
        ledger.delivery(
            HOSTILE, now, dag_id="open", conn_id="hostile", subject=HOSTILE * 500, error=HOSTILE, status=HOSTILE,
            files=json.dumps([{"name": HOSTILE, "size": -1, "sha256": HOSTILE}]), run_id="r", task_id="deliver",
        ),
    ]  # fmt: skip
    ledger.insert(warehouse, DELIVERIES, rows)
    ledger.insert(warehouse, RECIPIENTS, [(ledger.ACCOUNT, HOSTILE, 1, HOSTILE, HOSTILE, None)])


@pytest.mark.parametrize("path", [PAGE, TASK])
def test_anonymous_is_told_to_sign_in(airflow: TestClient, fresh: Any, path: str) -> None:
    answer = airflow.get(path, params={"dag_id": "open"} | OF_TASK)
    assert (answer.status_code, "Sign in to Airflow" in answer.text) == (401, True)
    assert_guarded(answer)


@pytest.mark.parametrize("path", [PAGE, TASK])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_changed(airflow: TestClient, fresh: Any, method: str, path: str) -> None:
    assert airflow.request(method, path).status_code == 405


def test_a_user_without_a_role_sees_nothing(as_user: Callable[..., Any], warehouse: Warehouse) -> None:
    fill(warehouse)
    assert as_user(PAGE, role=None).status_code == 403
    assert as_user(TASK, role=None, dag_id="open", **OF_TASK).status_code == 403


def test_deliveries_of_dags_that_may_not_be_read_are_not_there(
    as_user: Callable[..., Any], warehouse: Warehouse
) -> None:
    fill(warehouse)
    answer = as_user(PAGE)
    assert (answer.status_code, "t-open" in answer.text, "t-set" in answer.text) == (200, True, True)
    assert "t-secret" not in answer.text
    assert "t-gone" not in answer.text
    assert "t-secret" not in as_user(PAGE, search="secret").text
    assert_guarded(answer)


def test_a_task_instance_is_shown_to_who_may_read_its_dag(as_user: Callable[..., Any], warehouse: Warehouse) -> None:
    fill(warehouse)
    answer = as_user(TASK, dag_id="open", **OF_TASK)
    assert (answer.status_code, "t-open" in answer.text, "t-set" in answer.text) == (200, True, False)
    assert_guarded(answer)
    for dag_id in ("secret", "of no DAG any more", "~", ""):
        refused = as_user(TASK, dag_id=dag_id, **OF_TASK)
        assert (refused.status_code, "t-secret" in refused.text) == (403, False)


@pytest.mark.parametrize(
    "first_and_last", [("open", "secret"), ("secret", "open")], ids=["the last is secret", "the last is open"]
)
def test_a_dag_named_twice_is_checked_as_it_is_read(
    as_user: Callable[..., Any], warehouse: Warehouse, first_and_last: tuple[str, str]
) -> None:
    fill(warehouse)
    query = "&".join(f"dag_id={each}" for each in first_and_last)
    answer = as_user(f"{TASK}?{query}&run_id=r&task_id=deliver")
    assert "t-secret" not in answer.text


def test_hostile_values_are_rendered_as_text(as_user: Callable[..., Any], warehouse: Warehouse) -> None:
    fill(warehouse)
    for answer in (as_user(PAGE), as_user(TASK, dag_id="open", **OF_TASK), as_user(PAGE, search=HOSTILE)):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd\ufffd" in answer.text
        assert [each for each in WRONG if each in answer.text] == []
        assert len(answer.text) < 60_000
        assert_guarded(answer)


WRONG = ("<script>alert", "javascript:", "\u202e", "\x07")


# ------------------------------------------------------------------------------------------------- who has picked up


def record_recipients(warehouse: Warehouse, transfer_id: str, people: list[dict[str, Any]]) -> None:
    now = datetime.now(UTC)
    ensure_schema(warehouse, LEDGER, now)
    row = (ledger.ACCOUNT, transfer_id, json.dumps(people), ledger.format_timestamp(now))
    ledger.insert(warehouse, DELIVERY_RECIPIENTS, [row])


def people(count: int, picked_up: int, name: str = "") -> list[dict[str, Any]]:
    at = "2026-01-31T12:00:00.000000Z"
    return [
        {"email": f"p{number:03}{name}@example.com", "name": name, "picked_up_at": at if number < picked_up else None}
        for number in range(count)
    ]


def test_page_and_tab_name_who_has_and_has_not_picked_up(as_user: Callable[..., Any], warehouse: Warehouse) -> None:
    fill(warehouse)
    record_recipients(warehouse, "t-open", people(250, 100))
    record_recipients(warehouse, "t-secret", people(1, 0, "secret"))
    page, tab = as_user(PAGE).text, as_user(TASK, dag_id="open", **OF_TASK).text
    assert "not yet: p100@example.com" in page
    assert "picked up: p000@example.com" in page
    assert "and 145 more" in page
    assert "p249@example.com" not in page
    assert [f"p{number:03}@example.com" in tab for number in range(250)] == [True] * 250
    assert tab.count("not yet") == 150 + 1  # and the hostile one's
    assert "secret@example.com" not in page + tab
    assert "secret@example.com" not in as_user(TASK, dag_id="secret", **OF_TASK).text


def test_hostile_recipients_are_rendered_as_text(as_user: Callable[..., Any], warehouse: Warehouse) -> None:
    fill(warehouse)
    record_recipients(warehouse, "t-open", [{"email": HOSTILE, "name": HOSTILE, "picked_up_at": HOSTILE}, {}, [], None])
    for answer in (as_user(PAGE), as_user(TASK, dag_id="open", **OF_TASK)):
        assert answer.status_code == 200
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd\ufffd" in answer.text
        assert [each for each in WRONG if each in answer.text] == []
        assert_guarded(answer)


def test_recipients_are_not_shown_if_the_setting_says_so(
    as_user: Callable[..., Any], warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", "none")
    fill(warehouse)
    record_recipients(warehouse, "t-open", people(3, 1))
    ledger.insert(warehouse, RECIPIENTS, [(ledger.ACCOUNT, "t-set", 1, "eve@example.com", "", None)])
    for answer in (as_user(PAGE), as_user(TASK, dag_id="open", **OF_TASK)):
        assert answer.status_code == 200
        assert "@example.com" not in answer.text


# ------------------------------------------------------------------------------------------------------ without a draft


def test_a_task_that_failed_before_its_draft_is_shown_with_its_error(
    as_user: Callable[..., Any], warehouse: Warehouse
) -> None:
    tables = DeliveryTables(warehouse)
    for map_index in (-1, 7):
        task = TaskRef("plain", "open", "deliver", "r", map_index, 2)
        at = ledger.format_timestamp(datetime.now(UTC))
        tables.save(DeliveryFailure(task=task, subject=HOSTILE, error=f"no file matches {HOSTILE}", at=at))
    for params in ({}, {"status": "failed"}, {"status": "error"}):
        answer = as_user(PAGE, **params)
        assert answer.text.count("no file matches") == 4, "as text and as the title of each"
        assert "failed-" not in answer.text
        assert "data-outside rel" not in answer.text
        assert [each for each in WRONG if each in answer.text] == []
    tab = as_user(TASK, dag_id="open", **OF_TASK).text
    assert "no draft was created" in tab
    assert tab.count("no file matches") == 1


def test_what_is_in_doubt_has_a_tile_of_its_own_that_leads_to_it(
    as_user: Callable[..., Any], warehouse: Warehouse
) -> None:
    fill(warehouse)
    of_task: dict[str, Any] = {"dag_id": "open", "conn_id": "plain", "run_id": "r", "task_id": "deliver"}
    now = datetime.now(UTC)
    ledger.insert(warehouse, DELIVERIES, [ledger.delivery("t-doubt", now, status="in doubt", **of_task)])
    tiles = dict(
        re.findall(r'class="tile [a-z-]+" href="(\S+?)#deliveries"><span>In \w+</span><b>(\d+)', as_user(PAGE).text)
    )
    assert tiles == {"?status=in-flight": "3", "?status=in+doubt": "1"}
    for status, is_shown in (("in doubt", True), ("in-flight", False)):
        assert ("t-doubt" in as_user(PAGE, status=status).text) is is_shown


def test_a_rehearsal_is_named_and_can_be_looked_for(as_user: Callable[..., Any], warehouse: Warehouse) -> None:
    fill(warehouse)
    of_task: dict[str, Any] = {"dag_id": "open", "conn_id": "plain", "run_id": "r", "task_id": "deliver"}
    row = ledger.delivery("t-rehearsed", datetime.now(UTC), status="rehearsed", **of_task)
    ledger.insert(warehouse, DELIVERIES, [row])
    text = as_user(PAGE, status="rehearsed").text
    assert "t-rehearsed" in text
    assert "t-open" not in text
    assert re.search(r'<option value="rehearsed" selected[^>]*>Rehearsed<', text)


# ------------------------------------------------------------------------------------------------------- one machine


def test_the_page_needs_no_setting_on_one_machine(
    as_user: Callable[..., Any], fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__DEFAULT_LEDGER", "True")
    file = airflow_home.HOME / LOCAL_FILE
    try:
        assert f"in the file <code>{LOCAL_FILE}</code>" in as_user(PAGE).text
        assert f"No event feed in the file {LOCAL_FILE} in AIRFLOW_HOME" in as_user(PAGE).text
        config = load_config()
        assert config is not None
        at = ledger.format_timestamp(datetime.now(UTC))
        task = TaskRef("plain", "open", "deliver", "r", -1, 1)
        open_tables(config, None).save(DeliveryFailure(task=task, subject="S", error="no file matches", at=at))
        assert "no file matches" in as_user(PAGE).text
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
        assert "AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID" in as_user(PAGE).text
    finally:
        for each in file.parent.glob(f"{LOCAL_FILE}*"):
            each.unlink()


# --------------------------------------------------------------------------------------------------------------- links


def test_links_lead_where_they_should_and_carry_no_key(as_user: Callable[..., Any], warehouse: Warehouse) -> None:
    fill(warehouse)
    text = as_user(PAGE).text
    outside = re.findall(r'href="([^"]+)" data-outside', text)
    assert sorted(outside) == [
        "https://account.example.com/transfers/t-open",
        "https://app.example.com/x/transfers/t-set",
    ]
    inside = set(re.findall(r'href="([^"]+)" data-airflow', text))
    assert {"../dags/open/runs/r", "../dags/open/runs/r/tasks/deliver", "../dags/open/runs/..%2F.."} <= inside
    assert KEY not in text


def assert_guarded(answer: Any) -> None:
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'self'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert answer.headers["Cache-Control"] == "no-store"
    # What the policy would refuse is not there to be refused.
    assert re.findall(r"<style|<script(?! src=\"static/)|<[^>]+ (?:style|on\w+)=", answer.text) == []


def test_static_files_are_guarded_too(airflow: TestClient, fresh: Any) -> None:
    for name, kind in (("page.css", "text/css"), ("frame.js", "javascript")):
        answer = airflow.get(f"/outbound-transfer/static/{name}")
        assert (answer.status_code, kind in answer.headers["Content-Type"]) == (200, True)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert airflow.get("/outbound-transfer/static/..%2fapp.py").status_code == 404


# ---------------------------------------------------------------------------------------------------- nothing to show


def test_without_a_ledger_it_says_how_to_set_one(as_user: Callable[..., Any], fresh: Any) -> None:
    for answer in (as_user(PAGE), as_user(TASK, dag_id="open", **OF_TASK)):
        assert answer.status_code == 200
        assert "AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID" in answer.text


def test_without_tables_it_says_what_makes_them(as_user: Callable[..., Any], warehouse: Warehouse) -> None:
    text = as_user(PAGE).text
    place = "the database of connection &#39;page_ledger&#39;"
    for hint in ("DeliverFilesOperator", f"No event feed in {place}", "sql_conn_id"):
        assert hint in text
    assert "created with the first delivery" in text
    assert "created with the first delivery" in as_user(TASK, dag_id="open", **OF_TASK).text


def test_with_empty_tables_it_says_so(as_user: Callable[..., Any], warehouse: Warehouse) -> None:
    ledger.make_tables(warehouse, datetime.now(UTC))
    assert "<span>Event feed</span><b>not found</b>" in as_user(PAGE).text, "it may be in another database"
    for params, hint in (({}, "No deliveries yet"), ({"status": "expired"}, "Nothing matches")):
        assert hint in as_user(PAGE, **params).text
    assert "No delivery of this task instance" in as_user(TASK, dag_id="open", **OF_TASK).text


@pytest.mark.parametrize(
    "connection",
    [
        {"conn_type": "http", "host": "https://example.com", "password": KEY},
        {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "password": KEY},
        {"conn_type": "sqlite", "host": "/nowhere/at/all.db", "password": KEY},
    ],
    ids=["no SQL database", "nobody listens", "no such file"],
)
def test_a_ledger_that_cannot_be_read_is_named(
    as_user: Callable[..., Any], set_ledger: Callable[[str], None], connection: dict[str, Any]
) -> None:
    set_ledger(json.dumps(connection))
    answer = as_user(PAGE)
    assert (answer.status_code, "ledger_conn_id" in answer.text, KEY in answer.text) == (503, True, False)
    assert_guarded(answer)


def test_a_warehouse_that_does_not_respond_is_named(
    as_user: Callable[..., Any], fresh: Callable[..., None], warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()
    monkeypatch.setattr(ui, "deliveries_page", lambda *_: end.wait())
    fresh(max_threads=1, seconds=0.1)
    answer = as_user(PAGE)
    end.set()
    assert (answer.status_code, "does not respond" in answer.text) == (503, True)
