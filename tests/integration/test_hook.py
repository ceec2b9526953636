"""The hook against the sandbox: every endpoint, ways to write a connection, and what the UI is told of it."""

from __future__ import annotations

import json
import logging
import re
import socket
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
from airflow.providers.common.compat.lineage.hook import get_hook_lineage_collector

from outbound_transfer.exceptions import CallError, InvalidRequest
from outbound_transfer.get_provider_info import get_provider_info
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer_sandbox.testing import Sandbox
from support import transfers
from support.airflow_names import redact
from support.provider import Upload, build_new_transfer
from support.raw_server import answer, header, serving
from support.repository import REPOSITORY

VARIABLE = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"


def test_a_transfer_from_draft_to_pickup(hook: OutboundTransferHook, sandbox: Sandbox) -> None:
    recipients = ["ann@example.com", {"email": "bob@example.com", "name": "Bob"}]
    draft = hook.create_transfer(build_new_transfer(subject="Report", recipients=recipients))
    assert (draft.status, draft.files, draft.sent_at) == ("draft", (), None)
    people = [(recipient.email, recipient.name) for recipient in draft.recipients]
    assert people == [("ann@example.com", "ann"), ("bob@example.com", "Bob")]
    file = hook.attach_file(draft.id, Upload("a.txt", 3, lambda: iter([b"abc"])))
    assert hook.list_files(draft.id) == (file,) == (hook.get_file(draft.id, file.id),)
    assert hook.send_transfer(draft.id).status == "pending"
    sandbox.pickup(draft.id, "ann@example.com")
    seen = hook.get_transfer(draft.id)
    assert (seen.status, seen.picked_up, seen.files) == ("partial", ["ann@example.com"], (file,))


def test_the_listing_by_page_and_as_a_whole(hook: OutboundTransferHook, sandbox: Sandbox) -> None:
    transfers.create(sandbox)
    sent = transfers.send(sandbox, 5)
    page = hook.list_transfers(limit=2)
    assert [one.id for one in page.data] == sent[:-3:-1]
    assert page.next_cursor
    assert [one.id for one in hook.list_transfers(limit=2, cursor=page.next_cursor).data] == sent[2:0:-1]
    assert [one.id for one in hook.iter_transfers(page_size=2)] == sent[::-1]
    sandbox.pickup(sent[0], "ann@example.com")
    assert [one.id for one in hook.iter_transfers(status="complete")] == sent[:1]
    with pytest.raises(InvalidRequest):
        hook.list_transfers(status="draft")


def uri(sandbox: Sandbox, extra: str) -> str:
    parts = urlsplit(sandbox.base_url)
    key, host = (quote(text, safe="") for text in (sandbox.transfer_api_key, f"http://{parts.hostname}"))
    return f"outbound-transfer://:{key}@{host}:{parts.port}/?event_api_key={sandbox.event_api_key}{extra}"


def as_json(sandbox: Sandbox, **fields: Any) -> str:
    return json.dumps({**json.loads(sandbox.airflow_connection()), **fields})


FORMS = {
    "URI": lambda sandbox: uri(sandbox, ""),
    "URI with extras as text": lambda sandbox: uri(sandbox, "&timeout=30&verify=false"),
    "JSON with port 0": lambda sandbox: as_json(sandbox, port=0),
    "JSON with schema, host and port": lambda sandbox: as_json(
        sandbox, host="127.0.0.1", schema="http", port=urlsplit(sandbox.base_url).port
    ),
    "JSON with extra as text": lambda sandbox: as_json(
        sandbox, extra=json.dumps({"event_api_key": sandbox.event_api_key, "web_url": None})
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_connection_works(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv(VARIABLE, FORMS[form](sandbox))
    accepted = "The transfer key is accepted. The event key is accepted."
    assert OutboundTransferHook().test_connection() == (True, accepted)
    assert [call["status"] for call in sandbox.requests()] == [200, 400], "the feed's minute is not used up"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"password": "wrong\nkey"}, "password .* characters that no key contains"),
        ({"password": "wrong-key"}, "401 invalid_api_key.*Check the API key"),
        ({"extra": {"event_api_key": "wrong-key"}}, "401"),
        ({"host": "http://127.0.0.1:1"}, "no connection to http://127.0.0.1:1"),
    ],
)
def test_unusable_settings_are_reported_and_not_quoted(sandbox, monkeypatch, fields, said) -> None:
    monkeypatch.setenv(VARIABLE, as_json(sandbox, **fields))
    good, message = OutboundTransferHook().test_connection()
    assert not good
    assert re.search(said, message)
    assert "wrong" not in message


def test_the_provider_info_names_what_exists_and_airflow_shows_its_connection_type() -> None:
    info = get_provider_info()
    kinds = ("hooks", "operators", "sensors", "triggers")
    modules = [module for kind in kinds for row in info[kind] for module in row["python-modules"]]
    assert all(map(import_module, modules + [row["python-module"] for row in info["transfers"]]))
    (shown,) = [meta for meta in HookMetaService.hook_meta_data() if meta.connection_type == "outbound_transfer"]
    assert shown.hook_name == OutboundTransferHook.hook_name
    assert shown.hook_class_name == f"{OutboundTransferHook.__module__}.{OutboundTransferHook.__qualname__}"
    assert set(shown.extra_fields or {}) == {"event_api_key", "timeout", "verify", "web_url", "rehearse"}
    (service,) = info["integrations"]
    assert all((REPOSITORY / page.lstrip("/")).exists() for page in (service["logo"], *service["how-to-guide"]))


def test_airflow_makes_an_asset_of_an_account() -> None:
    parts = {"account": "acme.example.com", "name": "transfers"}
    asset = get_hook_lineage_collector().create_asset(scheme="outbound-transfer", asset_kwargs=parts)
    assert asset is not None
    assert asset.uri == "outbound-transfer://acme.example.com/transfers"


def test_a_triggerer_that_only_reads_the_connection_masks_the_event_key_too(hook, sandbox) -> None:
    hook.read_settings()
    assert redact(f"event key {sandbox.event_api_key}") == "event key ***"


def test_the_log_of_the_http_library_shows_no_key_that_a_peer_sends_back(monkeypatch, caplog) -> None:
    def send_back(stream: socket.socket, request: bytes) -> None:
        stream.sendall(answer(b"{}", "400 Bad", f"X-Echo: {header(request, 'Authorization')}"))

    caplog.set_level(logging.DEBUG)
    with serving(send_back) as server:
        peer = {"conn_type": "outbound_transfer", "host": server.url(), "password": "otk_5f1c09d2e7ab"}
        monkeypatch.setenv("AIRFLOW_CONN_PEER", json.dumps(peer))
        with pytest.raises(CallError), OutboundTransferHook("peer") as hook:
            hook.get_transfer("t")
    assert "(b'X-Echo', b'Bearer ***')" in caplog.text
    assert "otk_" not in caplog.text
