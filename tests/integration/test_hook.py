"""The hook against the sandbox: every endpoint, every way to write a connection, and what the UI is told of it."""

from __future__ import annotations

import json
import logging
import re
import socket
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import airflow
import jsonschema
import pytest

from outbound_transfer.exceptions import CallError, InvalidRequest
from outbound_transfer.get_provider_info import get_provider_info
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer_sandbox.testing import Sandbox
from support.airflow_names import redact
from support.provider import Transfer, Upload, build_new_transfer
from support.raw_server import answer, header, serving

NEW = build_new_transfer(subject="Report", recipients=["ann@example.com", {"email": "bob@example.com", "name": "Bob"}])
VARIABLE = "AIRFLOW_CONN_OUTBOUND_TRANSFER_DEFAULT"


def upload(name: str = "a.txt", data: bytes = b"abc") -> Upload:
    return Upload(name, len(data), lambda: iter([data] if data else []))


def sent(hook: OutboundTransferHook, subject: str = "Report") -> Transfer:
    draft = hook.create_transfer(build_new_transfer(subject=subject, recipients="ann@example.com"))
    hook.attach_file(draft.id, upload())
    return hook.send_transfer(draft.id)


# -------------------------------------------------------------------------------------------------------- endpoints


def test_a_transfer_from_draft_to_pickup(hook: OutboundTransferHook, sandbox: Sandbox) -> None:
    draft = hook.create_transfer(NEW)
    assert (draft.status, draft.files, draft.sent_at) == ("draft", (), None)
    assert [(recipient.email, recipient.name) for recipient in draft.recipients] == [
        ("ann@example.com", "ann"),
        ("bob@example.com", "Bob"),
    ]
    file = hook.attach_file(draft.id, upload())
    assert hook.list_files(draft.id) == (file,) == (hook.get_file(draft.id, file.id),)
    assert hook.send_transfer(draft.id).status == "pending"
    sandbox.pickup(draft.id, "ann@example.com")
    seen = hook.get_transfer(draft.id)
    assert (seen.status, seen.picked_up, seen.files) == ("partial", ["ann@example.com"], (file,))


def test_the_listing_by_page_and_as_a_whole(hook: OutboundTransferHook, sandbox: Sandbox) -> None:
    hook.create_transfer(NEW)
    sent_ids = [sent(hook, str(number)).id for number in range(5)]
    page = hook.list_transfers(limit=2)
    assert [transfer.id for transfer in page.data] == sent_ids[:-3:-1]
    assert page.next_cursor
    assert [transfer.id for transfer in hook.list_transfers(limit=2, cursor=page.next_cursor).data] == sent_ids[2:0:-1]
    assert [transfer.id for transfer in hook.iter_transfers(page_size=2)] == sent_ids[::-1]
    sandbox.pickup(sent_ids[0], "ann@example.com")
    assert [transfer.id for transfer in hook.iter_transfers(status="complete")] == sent_ids[:1]
    with pytest.raises(InvalidRequest):
        hook.list_transfers(status="draft")


def test_the_feed(hook: OutboundTransferHook, sandbox: Sandbox) -> None:
    last = sandbox.add_events(3)
    page = hook.read_events(limit=2)
    assert ([event.type for event in page.events], page.has_more) == (["transfer_sent"] * 2, True)
    sandbox.advance_clock(60)
    rest = hook.read_events(cursor=page.next_cursor)
    assert (len(rest.events), rest.next_cursor, rest.has_more) == (1, last, False)


# ------------------------------------------------------------------------------------------------------ connections


def uri(sandbox: Sandbox, **extra: str) -> str:
    parts = urlsplit(sandbox.base_url)
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in extra.items())
    host = quote(f"http://{parts.hostname}", safe="")
    return f"outbound-transfer://:{quote(sandbox.transfer_api_key, safe='')}@{host}:{parts.port}/?{query}"


def as_json(sandbox: Sandbox, **fields: Any) -> str:
    return json.dumps({**json.loads(sandbox.airflow_connection()), **fields})


FORMS = {
    "URI": lambda sandbox: uri(sandbox, event_api_key=sandbox.event_api_key),
    "URI with extras as text": lambda sandbox: uri(
        sandbox, event_api_key=sandbox.event_api_key, timeout="30", verify="false"
    ),
    "JSON": Sandbox.airflow_connection,
    "JSON with port 0": lambda sandbox: as_json(sandbox, port=0),
    "JSON with the port by itself": lambda sandbox: as_json(
        sandbox, host="http://127.0.0.1", port=urlsplit(sandbox.base_url).port
    ),
    "JSON with schema, host and port": lambda sandbox: as_json(
        sandbox, host="127.0.0.1", schema="http", port=urlsplit(sandbox.base_url).port
    ),
    "JSON with extra as text": lambda sandbox: as_json(
        sandbox, extra=json.dumps({"event_api_key": sandbox.event_api_key, "web_url": None})
    ),
}


KEYS_ACCEPTED = "The transfer key is accepted. The event key is accepted."


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_connection_works(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv(VARIABLE, FORMS[form](sandbox))
    assert OutboundTransferHook().test_connection() == (True, KEYS_ACCEPTED)
    assert [call["status"] for call in sandbox.requests()] == [200, 400]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"password": "wrong\nkey"}, "password .* characters that no key contains"),
        ({"password": "wrong key"}, "password .* characters that no key contains"),
        ({"password": ""}, "password .* is not set"),
        ({"password": "wrong-key"}, "401 invalid_api_key.*Check the API key"),
        ({"extra": {"event_api_key": "wrong\r\nkey"}}, "event_api_key contains characters"),
        ({"extra": {"event_api_key": "wrong-key"}}, "401"),
        ({"extra": {"timeout": "soon"}}, "timeout must be a number"),
        ({"host": ""}, "the host must be"),
        ({"host": "ftp://h"}, "the host must be"),
        ({"host": "http://u:wrong-key@h"}, "must hold no user, password"),
        ({"host": "http://127.0.0.1:1"}, "no connection to http://127.0.0.1:1"),
    ],
)
def test_unusable_settings_are_reported_and_not_quoted(sandbox, monkeypatch, fields, said) -> None:
    monkeypatch.setenv(VARIABLE, as_json(sandbox, **fields))
    good, message = OutboundTransferHook().test_connection()
    assert not good
    assert re.search(said, message)
    assert "wrong" not in message


# -------------------------------------------------------------------------------------------------- test_connection


def test_testing_never_spends_the_feeds_minute(connection: str, sandbox: Sandbox) -> None:
    for _ in range(3):
        assert OutboundTransferHook(connection).test_connection()[0]
    assert [call["status"] for call in sandbox.feed_calls()] == [400] * 3
    with OutboundTransferHook(connection) as hook:
        assert hook.read_events().events == ()


# ---------------------------------------------------------------------------------------------------- provider info


def test_the_provider_info_is_what_airflow_expects() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_airflow_shows_the_connection_type_with_its_fields() -> None:
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

    (shown,) = [meta for meta in HookMetaService.hook_meta_data() if meta.connection_type == "outbound_transfer"]
    assert shown.hook_name == OutboundTransferHook.hook_name
    assert shown.hook_class_name == f"{OutboundTransferHook.__module__}.{OutboundTransferHook.__qualname__}"
    assert set(shown.extra_fields or {}) == {"event_api_key", "timeout", "verify", "web_url", "rehearse"}


def test_the_provider_info_names_what_exists() -> None:
    info = get_provider_info()
    kinds = ("hooks", "operators", "sensors", "triggers")
    modules = [module for kind in kinds for row in info[kind] for module in row["python-modules"]]
    modules += [row["python-module"] for row in info["transfers"]]
    assert all(map(import_module, modules))
    assert info["connection-types"][0]["connection-type"] == OutboundTransferHook.conn_type


# -------------------------------------------------------------------------------------------------------------- masks


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
        with pytest.raises(CallError):
            OutboundTransferHook("peer").get_transfer("t")
    assert "(b'X-Echo', b'Bearer ***')" in caplog.text
    assert "otk_" not in caplog.text
