"""What the pytest plugin gives: an empty sandbox, a connection for the test, assertions that tell what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from outbound_transfer_sandbox.pytest_plugin import _connected
from outbound_transfer_sandbox.testing import Sandbox

VARIABLE = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"


def test_a_session_that_uses_no_sandbox_pays_nothing() -> None:
    script = "import sys; before = set(sys.modules); import outbound_transfer_sandbox.pytest_plugin;"
    script += "print(sorted(m for m in set(sys.modules) - before if not m.startswith('outbound_transfer_sandbox')))"
    done = subprocess.run(
        [sys.executable, "-c", f"import pytest; {script}"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("package", ["httptools", "jinja2", "starlette", "uvicorn", "uvloop"])
def test_without_the_extra_the_command_and_the_fixture_name_it(package: str) -> None:
    script = f"""
import sys; sys.modules["{package}"] = None
from outbound_transfer_sandbox.pytest_plugin import _connected
try:
    _connected().__enter__()
except BaseException as error:
    print(error)
import outbound_transfer_sandbox.__main__
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    for said in (done.stdout, done.stderr):
        assert package in said
        assert "pip install 'airflow-provider-outbound-transfer[sandbox]'" in said
        assert "Traceback" not in said
    assert done.returncode == 1


def test_the_connection_exists_only_during_the_test(
    monkeypatch: pytest.MonkeyPatch, transfer_sandbox_session: Sandbox, transfer_sandbox: Sandbox
) -> None:
    assert transfer_sandbox.base_url != transfer_sandbox_session.base_url
    assert json.loads(os.environ[VARIABLE])["host"] == transfer_sandbox.base_url
    monkeypatch.setenv(VARIABLE, "of the user")
    with _connected() as sandbox:
        connection = json.loads(os.environ[VARIABLE])
        assert connection["conn_type"] == "outbound_transfer"
        assert connection["host"] == sandbox.base_url
        assert connection["password"] == sandbox.transfer_api_key
        assert connection["extra"] == {"event_api_key": sandbox.event_api_key}
    assert os.environ[VARIABLE] == "of the user"


@contextmanager
def fails(*said: str) -> Iterator[None]:
    with pytest.raises(AssertionError) as failure:
        yield
    for text in said:
        assert text in str(failure.value)


def test_a_failed_assertion_names_the_transfers_that_were_sent(api: Any, control: Sandbox) -> None:
    control.assert_nothing_sent()
    with fails("one transfer should have been sent; sent: nothing"):
        control.assert_sent_once()
    first = api.sent(subject="First")["id"]
    assert control.assert_sent_once() == first
    control.assert_billed_once(first)
    draft = api.draft()["id"]
    with fails(f"{draft} was billed 0 times", "First"):
        control.assert_billed_once(draft)
    with fails(f"{first} ('First')"):
        control.assert_nothing_sent()
    second = api.sent(subject="Second")["id"]
    assert control.sent() == [first, second]
    with fails(f"{first} ('First'), {second} ('Second')"):
        control.assert_sent_once()


def test_a_wrong_delivery_fails_and_names_the_difference(api: Any, control: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"hello")
    transfer = api.sent(files=2, recipients=[{"email": "ann@example.com"}, {"email": "bob@example.com"}])["id"]
    both = ["bob@example.com", "ann@example.com"]
    control.assert_delivered(transfer, {"0.txt": b"hello", "1.txt": source}, *both)
    with fails("bob@example.com", "expected ['ann@example.com']"):
        control.assert_delivered(transfer, {"0.txt": b"hello", "1.txt": source}, "ann@example.com")
    with fails("holds ['0.txt', '1.txt'], expected ['0.txt']"):
        control.assert_delivered(transfer, {"0.txt": b"hello"}, *both)
    source.write_bytes(b"longer")
    with fails("'1.txt'", "5 bytes are stored, 6 were expected"):
        control.assert_delivered(transfer, {"0.txt": b"hello", "1.txt": source}, *both)
    with fails("was billed 0 times"):
        control.assert_delivered(api.draft()["id"], {})


def test_untriggered_faults_are_reported(api: Any, control: Sandbox) -> None:
    control.plan_faults({"kind": "error", "status": 503, "path": "*/send"})
    with fails("hit no call", "*/send"):
        control.assert_all_faults_triggered()
    assert api.send(api.draft()["id"]).status_code == 503
    control.assert_all_faults_triggered()


def test_reset_leaves_nothing_but_the_keys_of_the_start(api: Any, control: Sandbox, data_dir: Path) -> None:
    before, first = control.state(), control.event_api_key
    transfer = api.sent()
    file = transfer["files"][0]["id"]
    api.events()
    control.patch_account(requests_per_window=5)
    control.advance_clock(1_000_000)
    control.plan_faults({"kind": "error", "status": 503})
    other = control.new_key("bob@example.com")
    control.new_event_key()
    control.revoke_key(api.key)

    control.reset()

    assert list((data_dir / "files").iterdir()) == []
    state = control.state()
    assert state["account"] == before["account"]
    assert before["clock"] <= state["clock"] < transfer["expires_at"]
    assert control.ledger() == control.requests() == control.feed_calls() == control.faults() == []
    assert api.ids() == []
    assert api.event_key == control.event_api_key == first
    assert (api.events().status_code, api.events().status_code) == (200, 429)
    assert api.http.get("/v1/transfers", headers={"Authorization": f"Bearer {other}"}).status_code == 401
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        control.stored_file(transfer["id"], file)
    assert api.sent()["id"] != transfer["id"]
