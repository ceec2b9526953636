"""A hook before each attempt, and what the caller of a call knows when it is interrupted."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from outbound_transfer.client import Client, Settings
from outbound_transfer.protocol import endpoints, errors, flows
from outbound_transfer.protocol.deferral import DeferRequested
from outbound_transfer.protocol.errors import InvalidSettings
from outbound_transfer.protocol.flows import DiscardOutcome, SafeCall
from outbound_transfer.protocol.messages import Flow, Upload
from outbound_transfer.protocol.models import File
from support.scripted_client import (
    BUSY,
    DRAFT,
    FULL,
    INVALID_STATE,
    LIMITED,
    NO_CONTENT,
    NO_CREDIT,
    NOT_FOUND,
    PENDING,
    ScriptedAllowance,
    ScriptedClient,
    response,
)

GET, SEND = endpoints.get_transfer("t"), endpoints.send_transfer("t")
UPLOAD = Upload("a.txt", 3, lambda: iter([b"abc"]))


@pytest.mark.parametrize(
    ("script", "options", "expected"),
    [
        ([PENDING], {}, "hook send"),
        ([PENDING], {"allowance": ScriptedAllowance(30)}, "sleep hook send"),
        ([LIMITED, PENDING], {}, "hook send sleep hook send"),
        ([FULL, FULL, PENDING], {}, "hook send sleep hook send sleep hook send"),
        ([errors.NotConnected(), PENDING], {}, "hook send sleep hook send"),
        ([BUSY, DRAFT, PENDING], {}, "hook send sleep get hook send"),
        ([BUSY, BUSY, DRAFT, PENDING], {}, "hook send sleep get sleep get hook send"),
        ([BUSY, PENDING], {}, "hook send sleep get"),
    ],
    ids=["once", "reservation", "429", "slot", "no connection", "5xx", "a read that fails", "a read that shows it"],
)
def test_the_hook_is_called_after_every_delay_and_right_before_each_request(script, options, expected) -> None:
    with ScriptedClient(*script, **options) as client:
        assert client.perform(SEND, before_attempt=client.hook).status == "pending"
        assert " ".join(client.log) == expected


class TaskTimedOut(BaseException):
    """As Airflow's timeout, which is no Exception."""


RAISED = [
    errors.RateLimited(429, "rate_limited", retry_after=5.0),
    errors.ConnectionLost("lost"),
    errors.NotFound(404, "not_found"),
    errors.InvalidState(409, "invalid_state"),
    DeferRequested(60.0),
    errors.WrongTransfer("other"),
    KeyboardInterrupt(),
    TaskTimedOut(),
]


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
@pytest.mark.parametrize(
    ("first", "log"), [([], []), ([FULL], ["send", "sleep"])], ids=["first attempt", "second attempt"]
)
def test_what_the_hook_raises_is_raised_as_it_is_and_no_attempt_follows(raised, first, log) -> None:
    cause, left = ValueError("why"), list(first)

    def hook() -> None:
        if left:
            left.pop()
        else:
            raise raised from cause

    with ScriptedClient(*first, PENDING) as client:
        safe_call = SafeCall(SEND)
        with pytest.raises(type(raised)) as caught:
            client.perform(safe_call, before_attempt=hook)
        assert client.log == log
    assert caught.value is raised
    assert raised.__cause__ is cause
    assert not getattr(raised, "in_doubt_warning", "")
    assert not safe_call.may_be_applied


def test_the_hook_performs_calls_that_have_their_own_retries() -> None:
    with ScriptedClient(LIMITED, BUSY, DRAFT, FULL, BUSY, DRAFT, PENDING) as client:
        result = client.perform(SEND, before_attempt=lambda: client.perform(GET))
        assert result.status == "pending"
        assert " ".join(client.log) == "get sleep get sleep get send sleep get sleep get send"


@pytest.mark.parametrize("raised", [errors.NotFound(404, "not_found"), errors.InvalidState(409)], ids=str)
def test_a_flow_does_not_handle_what_the_hook_raises(raised) -> None:
    """A discard takes a 404 of its own call for a draft that is gone, and not one of the hook's."""

    def hook() -> None:
        raise raised

    with ScriptedClient(NOT_FOUND) as client:
        assert client.run(flows.discard_draft("t")) is DiscardOutcome.NOT_FOUND
        with pytest.raises(type(raised)) as caught:
            client.run(flows.discard_draft("t"), before_attempt=hook)
        assert caught.value is raised
        assert client.log == ["discard"]


STORED = response(201, id="f", name="a.txt", size=3)
TRUNCATED = response(201, id="f", name="a.txt", size=2)


def attach() -> Flow[File]:
    return flows.attach("t", UPLOAD, check_unchanged=lambda: None)


def test_each_attempt_of_an_upload_follows_the_hook() -> None:
    with ScriptedClient(LIMITED, errors.ConnectionLost(), STORED) as client:
        assert client.run(attach(), before_attempt=client.hook).size == 3
        assert " ".join(client.log) == "hook attach sleep hook attach sleep hook attach"


@pytest.mark.parametrize(
    ("hooks", "log"),
    [(0, ""), (1, "attach"), (2, "attach remove sleep"), (3, "attach remove sleep remove")],
    ids=["attach", "remove", "remove again", "never"],
)
def test_a_try_that_is_given_up_attaches_and_removes_nothing_more(hooks, log) -> None:
    """Also if it is given up while a call waits for its Retry-After."""
    wanted = iter(range(hooks))

    def hook() -> None:
        if next(wanted, None) is None:
            raise errors.DraftChanged

    with ScriptedClient(TRUNCATED, LIMITED, NO_CONTENT) as client:
        with pytest.raises(errors.SourceChanged if hooks == 3 else errors.DraftChanged):
            client.run(attach(), before_attempt=hook)
        assert " ".join(client.log) == log


# --------------------------------------------------------------------------------------- what an interrupt leaves open


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TaskTimedOut, RuntimeError])
@pytest.mark.parametrize(
    "before",
    [[], [FULL], [BUSY], [BUSY, DRAFT], [INVALID_STATE]],
    ids=["first request", "request after a refusal", "read", "request after a read", "read after a 409"],
)
def test_an_interrupt_of_a_request_leaves_open_what_it_did(interrupt, before) -> None:
    safe_call = SafeCall(SEND)
    with ScriptedClient(*before, interrupt()) as client, pytest.raises(interrupt):
        client.perform(safe_call)
    assert safe_call.may_be_applied


@pytest.mark.parametrize(
    ("script", "may_be_applied"),
    [
        ([FULL], False),
        ([LIMITED, FULL], False),
        ([errors.NotConnected()], False),
        ([BUSY], True),
        ([BUSY, DRAFT, FULL], True),
    ],
    ids=["slot", "429", "no connection", "5xx", "slot after a send in doubt"],
)
def test_an_interrupt_of_a_delay_leaves_nothing_open_if_every_attempt_was_refused(script, may_be_applied) -> None:
    safe_call, client = SafeCall(SEND), ScriptedClient(*script)

    def sleep(seconds: float) -> None:
        if not client.script:
            raise TaskTimedOut

    client._sleep = sleep  # type: ignore[assignment]
    with client, pytest.raises(TaskTimedOut):
        client.perform(safe_call)
    assert safe_call.may_be_applied is may_be_applied


@pytest.mark.parametrize(
    ("script", "may_be_applied"), [([NO_CREDIT], False), ([PENDING], True), ([BUSY, PENDING], True)], ids=str
)
def test_a_call_that_is_finished(script, may_be_applied) -> None:
    safe_call = SafeCall(SEND)
    assert not safe_call.may_be_applied
    with ScriptedClient(*script) as client, nullcontext() if may_be_applied else pytest.raises(errors.NoCredit):
        client.perform(safe_call)
    assert safe_call.may_be_applied is may_be_applied


def test_a_key_that_is_missing_leaves_nothing_open() -> None:
    safe_call = SafeCall(SEND)
    with Client(Settings("http://127.0.0.1:9/", "")) as client, pytest.raises(InvalidSettings):
        client.perform(safe_call)
    assert not safe_call.may_be_applied
