"""The page in Airflow's own application: who may see what, and what it says where there is nothing to show."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor
from outbound_transfer.ui import app as ui
from outbound_transfer_sandbox.testing import Sandbox
from support import airflow_home, deliveries_table
from support.calls import SEND, ProcessCrashed, dying_after
from support.deliveries_table import LOCAL_FILE, DeliveriesTable
from support.memory import kept_in_a_database
from support.tasks import FakeTaskInstance, SimulatedClock
from support.warehouses import sqlite_hook

PAGE = "/outbound-transfer/deliveries"
TASK = "/outbound-transfer/task"
OF_TASK = {"run_id": "r", "task_id": "deliver", "map_index": "{MAP_INDEX}"}
KEY = "tk_secret_0123456789"
HOSTILE = '"><script>alert(1)</script>\u202e\x07'
WRONG = ("<script>alert", "javascript:", "\u202e", "\x07")
OF_TASK_OPEN: dict[str, Any] = {"dag_id": "open", "conn_id": "plain", "run_id": "r", "task_id": "deliver"}


@pytest.fixture(scope="module")
def airflow(airflow_database: None) -> Iterator[TestClient]:
    """Airflow's application as its API server makes it, with two Dags in its database."""
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
def as_user(airflow, monkeypatch) -> Callable[..., Any]:
    """A GET by a user who may read the Dag "open" alone; of the rest the simple auth manager's roles decide."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    manager: Any = get_auth_manager()
    decide = type(manager).is_authorized_dag

    def is_authorized_dag(self: Any, *, details: Any = None, **rest: Any) -> bool:
        return decide(self, details=details, **rest) and details is not None and details.id == "open"

    monkeypatch.setattr(type(manager), "is_authorized_dag", is_authorized_dag)

    def get(path: str, role: str | None = "viewer", **params: str) -> Any:
        token = manager.generate_jwt(SimpleAuthManagerUser(username="vera", role=role))
        headers = {"Authorization": f"Bearer {token}"}
        for _ in range(5):  # as a person who is told that the database does not respond
            answer = airflow.get(path, params=params or None, headers=headers, follow_redirects=False)
            if "does not respond" not in answer.text:
                break
        return answer

    return get


@pytest.fixture
def fresh() -> None:
    ui.application.cache_clear()


@pytest.fixture
def set_connection(monkeypatch, fresh) -> Callable[[str], None]:
    deliveries_table.use(monkeypatch, "page_deliveries")
    return lambda connection: monkeypatch.setenv("AIRFLOW_CONN_PAGE_DELIVERIES", connection)


@pytest.fixture
def table(set_connection, tmp_path, monkeypatch) -> DeliveriesTable:
    file = tmp_path / "warehouse.db"
    set_connection(json.dumps({"conn_type": "sqlite", "host": str(file)}))
    service = {"conn_type": "outbound_transfer", "host": "https://account.example.com", "password": KEY}
    for conn_id, web_url in (("plain", ""), ("set", "https://app.example.com/x"), ("hostile", "javascript:alert(1)")):
        value = json.dumps(service | {"extra": {"web_url": web_url, "event_api_key": f"obs_{KEY}"}})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)
    return DeliveriesTable(sqlite_hook(file))


def fill(table: DeliveriesTable) -> None:
    table.make()
    table.add("t-open", **OF_TASK_OPEN)
    table.add("t-set", **OF_TASK_OPEN | {"conn_id": "set", "run_id": "../.."})
    table.add("t-secret", **OF_TASK_OPEN | {"conn_id": "set", "dag_id": "secret"})
    table.add("t-gone", **OF_TASK_OPEN | {"conn_id": "set", "dag_id": "of no Dag any more"})
    table.add(
        HOSTILE,
        **OF_TASK_OPEN | {"conn_id": "hostile", "subject": HOSTILE * 500, "error": HOSTILE, "status": HOSTILE},
        files={HOSTILE: -1}, recipients=json.dumps([{"email": HOSTILE, "name": HOSTILE, "picked_up_at": None}]),
    )  # fmt: skip


@pytest.mark.parametrize("path", [PAGE, TASK])
def test_anonymous_is_told_to_sign_in_and_nobody_can_change_anything(airflow, fresh, path) -> None:
    answer = airflow.get(path, params={"dag_id": "open"} | OF_TASK)
    assert (answer.status_code, "Sign in to Airflow" in answer.text) == (401, True)
    assert_guarded(answer)
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert airflow.request(method, path).status_code == 405


def test_deliveries_of_dags_that_the_user_may_not_read_are_not_shown(as_user, table) -> None:
    fill(table)
    assert as_user(PAGE, role=None).status_code == 403
    answer = as_user(PAGE)
    assert (answer.status_code, "t-open" in answer.text, "t-set" in answer.text) == (200, True, True)
    assert "t-secret" not in answer.text
    assert "t-gone" not in answer.text
    assert "t-secret" not in as_user(PAGE, search="secret").text
    assert_guarded(answer)


def test_a_task_instance_is_shown_to_who_may_read_its_dag(as_user, table) -> None:
    fill(table)
    assert as_user(TASK, role=None, dag_id="open", **OF_TASK).status_code == 403
    answer = as_user(TASK, dag_id="open", **OF_TASK)
    assert (answer.status_code, "t-open" in answer.text, "t-set" in answer.text) == (200, True, False)
    assert_guarded(answer)
    for dag_id in ("secret", "of no Dag any more", "~", ""):
        refused = as_user(TASK, dag_id=dag_id, **OF_TASK)
        assert (refused.status_code, "t-secret" in refused.text) == (403, False)
    for first, last in (("open", "secret"), ("secret", "open")):  # checked as it is read
        twice = f"{TASK}?dag_id={first}&dag_id={last}&run_id=r&task_id=deliver"
        assert "t-secret" not in as_user(twice).text


def test_hostile_values_are_text_and_links_lead_where_they_should(as_user, table) -> None:
    fill(table)
    table.name_recipients("t-open", [{"email": HOSTILE, "name": HOSTILE, "picked_up_at": HOSTILE}, {}, [], None])
    for answer in (as_user(PAGE), as_user(TASK, dag_id="open", **OF_TASK), as_user(PAGE, search=HOSTILE)):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\ufffd\ufffd" in answer.text
        assert [each for each in WRONG if each in answer.text] == []
        assert len(answer.text) < 60_000
        assert KEY not in answer.text
        assert_guarded(answer)
    text = as_user(PAGE).text
    assert sorted(re.findall(r'href="([^"]+)" data-outside', text)) == [
        "https://account.example.com/transfers/t-open",
        "https://app.example.com/x/transfers/t-set",
    ]
    inside = set(re.findall(r'href="([^"]+)" data-airflow', text))
    assert {"../dags/open/runs/r", "../dags/open/runs/r/tasks/deliver", "../dags/open/runs/..%2F.."} <= inside


def test_page_and_tab_name_who_has_picked_up_unless_the_setting_says_no(as_user, table, monkeypatch) -> None:
    fill(table)
    times = ["2026-01-31T12:00:00.000000Z"] * 100 + [None] * 150
    people = [{"email": f"p{number:03}@example.com", "name": "", "picked_up_at": at} for number, at in enumerate(times)]
    table.name_recipients("t-open", people)
    table.name_recipients("t-secret", [people[-1] | {"email": "secret@example.com"}])
    page, tab = as_user(PAGE).text, as_user(TASK, dag_id="open", **OF_TASK).text
    assert "not yet: p100@example.com" in page
    assert "picked up: p000@example.com" in page
    assert "and 145 more" in page
    assert "p249@example.com" not in page
    assert [f"p{number:03}@example.com" in tab for number in range(250)] == [True] * 250
    assert tab.count("not yet") == 150 + 1  # and the hostile one's
    assert "secret@example.com" not in page + tab + as_user(TASK, dag_id="secret", **OF_TASK).text
    monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__RECIPIENTS", "none")
    ui.application.cache_clear()
    for answer in (as_user(PAGE), as_user(TASK, dag_id="open", **OF_TASK)):
        assert answer.status_code == 200
        assert "@example.com" not in answer.text


@pytest.fixture(params=["sqlite", "psycopg", "mysqlclient"])
def any_table(request, table, set_connection, hook_of) -> DeliveriesTable:
    if request.param == "sqlite":
        return table
    database = request.getfixturevalue("postgres" if request.param == "psycopg" else "mariadb")
    connection = database.airflow_connection
    set_connection(connection() if callable(connection) else connection)
    return DeliveriesTable(hook_of(request.param))


def shown(text: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"\bnumber-\d+\b", text)))


def test_a_search_takes_each_character_for_itself(as_user, any_table) -> None:
    needles = ("100%", "a_b", "!", "[c]", "{x}", "?", "%s", "t'1", "Deliver_F")
    for number, needle in enumerate(needles):
        any_table.add(f"number-{number}", **OF_TASK_OPEN | {"subject": f"xx {needle.upper()} yy"})
    any_table.add("number-99", **OF_TASK_OPEN | {"subject": "100 aXb"})
    for number, needle in enumerate(needles):
        assert shown(as_user(PAGE, search=needle).text) == [f"number-{number}"], needle
    assert shown(as_user(PAGE, search="NUMBER-99").text) == ["number-99"]


def test_links_to_next_pages_lead_over_every_delivery(as_user, any_table) -> None:
    now = datetime.now(UTC)
    for number in range(60):  # half of them at the same moment
        any_table.add(f"number-{number:02}", created_at=now - timedelta(hours=1 + max(0, number - 30)), **OF_TASK_OPEN)
    found, link = [], "?"
    while link:
        text = as_user(f"{PAGE}{link}").text
        found += shown(text)
        link = next(iter(re.findall(r'href="([^"#]+)#deliveries" rel="next"', text)), "").replace("&amp;", "&")
    assert sorted(found) == [f"number-{number:02}" for number in range(60)]


def test_deliveries_are_sorted_by_a_column(as_user, any_table) -> None:
    now = datetime.now(UTC)
    rows = (("partial", "d", 2, 3, "d"), ("complete", "b", 0, 2, "c"), ("pending", "c", 3, 1, "a"))
    for number, (status, subject, picked_up, expires_in, task) in enumerate((*rows, ("in doubt", "a", 1, 9, "b"))):
        at = {"created_at": now - timedelta(hours=number), "expires_at": now + timedelta(days=expires_in)}
        shown_as = {"status": status, "subject": subject, "picked_up_count": picked_up, "task_id": task}
        any_table.add(f"number-{number}", **OF_TASK_OPEN | at | shown_as)
    for sort, expected in (
        ("", "0123"), ("age", "0123"), ("status", "1302"), ("subject", "3120"), ("picked-up", "1302"),
        ("expires", "203"), ("dag", "2310"),
    ):  # fmt: skip
        text = as_user(PAGE, sort=sort).text
        assert "".join(each[-1] for each in shown(text)).startswith(expected), sort
        assert f'<a href="?sort=-{sort or "age"}#deliveries">' in text
        backwards = "".join(each[-1] for each in shown(as_user(PAGE, sort=f"-{sort or 'age'}").text))
        assert backwards.endswith(expected[::-1]), sort


def test_order_and_age_agree(as_user, table) -> None:
    now = datetime.now(UTC)
    for number, begun, sent in ((1, 9, 1), (2, 4, 4)):
        at = {"created_at": now - timedelta(hours=begun), "sent_at": now - timedelta(hours=sent)}
        table.add(f"number-{number}", **at, **OF_TASK_OPEN)
    text = as_user(PAGE).text
    assert shown(text) == ["number-2", "number-1"]
    assert re.findall(r'data-label="Age" class="number">\s*<time[^>]+>(\d+ h)', text) == ["4 h", "9 h"]


def test_a_delivery_that_waits_for_approval_links_to_the_question(as_user, table) -> None:
    table.add("number-1", status="waits for approval", **OF_TASK_OPEN)
    assert re.search(r'href="\.\./dags/open/runs/[^"/]+/required_actions"', as_user(PAGE).text)


def test_the_picture_has_a_bar_for_each_of_thirty_days(as_user, any_table) -> None:
    any_table.make()
    assert "<svg" not in as_user(PAGE).text
    now = datetime.now(UTC)
    for number, status in enumerate(("complete", "complete", "pending", "expired", "draft", "failed")):
        at = (now - timedelta(days=20)).replace(hour=23, minute=59)
        any_table.add(f"number-{number}", status=status, created_at=at, **OF_TASK_OPEN)
    any_table.add("number-6", status="in doubt", created_at=now.replace(hour=0, minute=0), **OF_TASK_OPEN)
    any_table.add("number-7", status="complete", created_at=now - timedelta(days=31), **OF_TASK_OPEN)
    any_table.add("number-8", status="complete", **OF_TASK_OPEN | {"dag_id": "secret"})
    for params in ({}, {"days": "7"}, {"days": "365"}):
        answer = as_user(PAGE, **params)
        (picture,) = re.findall(r"<svg.*?</svg>", answer.text, re.DOTALL)
        assert '<desc id="picture-text">5 sent: 2 picked up, 1 waiting, 1 in doubt, 1 overdue</desc>' in picture
        for at, told in (
            (now - timedelta(days=20), "4 sent: 2 picked up, 1 waiting, 0 in doubt, 1 overdue"),
            (now, "1 sent: 0 picked up, 0 waiting, 1 in doubt, 0 overdue"),
        ):
            assert f"<title>{at:%Y-%m-%d}: {told}</title>" in picture
        assert picture.count("<g>") == 30
        assert_guarded(answer)
    assert "<b>2</b>" in re.search(r'class="tile complete".*', as_user(PAGE).text)[0]
    assert "<b>0</b>" in re.search(r'class="tile complete".*', as_user(PAGE, days="7").text)[0]


def delivery(sandbox: Sandbox, map_index: int = -1, **arguments: Any) -> FakeTaskInstance:
    given = {"subject": "Report", "recipients": "ann@example.com", **arguments}
    return FakeTaskInstance(
        lambda: DeliverFilesOperator(task_id="deliver", **given), SimulatedClock(sandbox),
        dag_id="open", run_id="r", task_id="deliver", map_index=map_index,
    )  # fmt: skip


def test_a_task_that_failed_before_its_draft_is_shown_with_its_error(as_user, table, sandbox, connection) -> None:
    for map_index in (-1, 7):
        with pytest.raises(Exception, match="nowhere"):
            delivery(sandbox, map_index, subject=HOSTILE, files="/nowhere/report-*.csv").run()
    for params in ({}, {"status": "failed"}, {"status": "error"}):
        answer = as_user(PAGE, **params)
        assert answer.text.count("/nowhere/report-*.csv") >= 2
        assert "data-outside rel" not in answer.text
        assert [each for each in WRONG if each in answer.text] == []
    tab = as_user(TASK, dag_id="open", **OF_TASK).text
    assert "no draft was created" in tab
    assert "/nowhere/report-*.csv" in tab


def test_a_delivery_is_on_the_page_from_a_send_in_doubt_to_its_end_and_no_secret_is(
    as_user, table, sandbox, connection, tmp_path
) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\n")
    secret = {"security": "question", "security_question": "Which colour?", "security_answer": "puce-coloured"}
    people = ["ann@example.com", {"email": "bob@example.com", "phone": "+44 7700 900123"}]
    task = delivery(sandbox, recipients=people, files=str(tmp_path / "a.csv"), **secret)
    with dying_after(SEND), pytest.raises(ProcessCrashed):
        task.run()
    sent = sandbox.assert_sent_once()
    assert sent in as_user(PAGE, status="in-doubt").text
    task.clear()
    task.run()
    assert sent not in as_user(PAGE, status="in-doubt").text
    assert sent in as_user(PAGE, status="in-flight").text
    text = as_user(PAGE).text + as_user(TASK, dag_id="open", **OF_TASK).text
    assert [word for word in (sent, "Report", "not yet: ann@example.com", "a.csv") if word not in text] == []
    for recipient in ("ann@example.com", "bob@example.com"):
        sandbox.pickup(sent, recipient)
    sensor = TransferSensor(task_id="wait", transfer_id=sent)
    sensor.execute(FakeTaskInstance(lambda: sensor, SimulatedClock(sandbox), task_id="wait").context())
    assert sent in as_user(PAGE, status="complete").text
    tab = as_user(TASK, dag_id="open", **OF_TASK).text
    assert ("bob@example.com" in tab, "not yet" in tab) == (True, False)
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("warehouse.db*"))
    for each in ("puce", "7700", sandbox.transfer_api_key, sandbox.event_api_key):
        assert each not in text + as_user(PAGE).text + tab
        assert each.encode() not in stored


TILES = {"canceled-or-unmade": ["canceled", "deleted", "rehearsed"], "in-doubt": ["in doubt"], "unknown": ["frozen"]}


def test_a_tile_leads_to_what_it_counts(as_user, table) -> None:
    table.add("t-pending", **OF_TASK_OPEN)
    assert 'class="tile unknown"' not in as_user(PAGE).text
    for outcome, statuses in TILES.items():
        for status in statuses:
            table.add(f"t-{status}", status=status, subject=f"As {status}", **OF_TASK_OPEN)
        (tile,) = re.findall(
            rf'<a class="tile {outcome}" href="(\S+)#deliveries">.*<b>{len(statuses)}</b>', as_user(PAGE).text
        )
        text = as_user(f"{PAGE}{tile}").text
        assert [f"As {status}" in text for status in statuses] == [True] * len(statuses)
        assert "t-pending" not in text


def test_rejected_lines_are_counted_up_to_a_bound(as_user, any_table) -> None:
    any_table.fill(1)
    assert re.search(r"<dt>Rejected lines</dt><dd[^>]*>1</dd>", as_user(PAGE).text)
    any_table.reject_lines(1_200)
    assert re.search(r"<dt>Rejected lines</dt><dd[^>]*>1,000 or more</dd>", as_user(PAGE).text)


def test_the_page_needs_no_setting_on_one_machine(as_user, fresh, sandbox, connection, monkeypatch, tmp_path) -> None:
    deliveries_table.use_default(monkeypatch)
    (tmp_path / "a.csv").write_bytes(b"a,b\n")
    file = airflow_home.HOME / LOCAL_FILE
    try:
        assert LOCAL_FILE in as_user(PAGE).text
        sent = kept_in_a_database(delivery(sandbox, files=str(tmp_path / "a.csv"))).run()
        assert sent["id"] in as_user(PAGE).text
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
        for answer in (as_user(PAGE), as_user(TASK, dag_id="open", **OF_TASK)):
            assert (answer.status_code, deliveries_table.SETTING in answer.text) == (200, True)
    finally:
        for each in file.parent.glob(f"{LOCAL_FILE}*"):
            each.unlink()


def assert_guarded(answer: Any) -> None:
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'self'" in policy
    guards = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"}
    assert {name: answer.headers[name] for name in guards} == guards
    # What the policy would refuse is not there to be refused.
    assert re.findall(r"<style|<script(?! src=\"static/)|<[^>]+ (?:style|on\w+)=", answer.text) == []


def test_static_files_are_guarded_too(airflow, fresh) -> None:
    for name, kind in (("page.css", "text/css"), ("frame.js", "javascript")):
        answer = airflow.get(f"/outbound-transfer/static/{name}")
        assert (answer.status_code, kind in answer.headers["Content-Type"]) == (200, True)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert airflow.get("/outbound-transfer/static/..%2fapp.py").status_code == 404


def test_where_there_is_nothing_it_says_what_is_missing(as_user, table) -> None:
    text = as_user(PAGE).text
    for hint in (
        "DeliverFilesOperator", "No event feed in the database of connection &#39;page_deliveries&#39;",
        "deliveries_conn_id", "The first delivery creates their table",
    ):  # fmt: skip
        assert hint in text
    assert "No deliveries of this task instance" in as_user(TASK, dag_id="open", **OF_TASK).text
    table.make()
    assert "<span>Event feed</span><b>not found</b>" in as_user(PAGE).text, "it may be in another database"
    for params, hint in (({}, "No deliveries yet"), ({"status": "expired"}, "Nothing matches")):
        assert hint in as_user(PAGE, **params).text
    assert "No deliveries of this task instance" in as_user(TASK, dag_id="open", **OF_TASK).text


def test_a_database_that_cannot_be_read_is_named(as_user, set_connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts nothing
        for fields, told in (
            ({"conn_type": "http", "host": "https://example.com"}, ""),
            ({"conn_type": "postgres", "host": "127.0.0.1", "port": 1}, ""),
            ({"conn_type": "postgres", "host": "127.0.0.1", "port": silent.getsockname()[1]}, "does not respond"),
        ):
            set_connection(json.dumps({"password": KEY, **fields}))
            ui.application.cache_clear()
            answer = as_user(PAGE)
            assert (answer.status_code, KEY in answer.text, told in answer.text) == (503, False, True)
            assert_guarded(answer)
