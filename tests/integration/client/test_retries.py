"""When a call is repeated: never early, never in a hot loop, never without end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from outbound_transfer.exceptions import RateLimited
from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
from outbound_transfer_sandbox.testing import running_sandbox
from support.provider import build_new_transfer
from support.wire import Wire, refusal, transfer

NOW = datetime(2026, 1, 31, 23, 59, 30, tzinfo=UTC)


def http_date(seconds: float) -> str:
    return format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)


def limited(retry_after: str | None, status: int = 429) -> bytes:
    headers = [] if retry_after is None else [f"Retry-After: {retry_after}"]
    return refusal(status, "rate_limited" if status == 429 else "", "words", f"Date: {http_date(0)}", *headers)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("retry_after", "seconds"), [("0", 1), ("600", 600), (http_date(90), 90), (http_date(-9), 1)])
def test_a_call_is_repeated_after_its_retry_after_and_at_most_a_second_later(
    wire: Callable[..., Wire], status: int, retry_after: str, seconds: float
) -> None:
    service = wire(limited(retry_after, status), transfer())
    assert service.hook.get_transfer("t").id == "t"
    (slept,) = service.sleeps
    assert seconds <= slept <= seconds + 1


@pytest.mark.parametrize("retry_after", ["86400", "9" * 30, http_date(10**8)])
def test_a_retry_after_beyond_the_timeout_is_not_waited_for(wire: Callable[..., Wire], retry_after: str) -> None:
    service = wire(limited(retry_after))
    with pytest.raises(RateLimited):
        service.hook.get_transfer("t")
    assert (len(service.lines), service.sleeps) == (1, [])


def test_a_restart_of_the_service_is_outlasted(connect: Callable[..., None], tmp_path: Path) -> None:
    """Nothing listens at its address for five attempts."""
    sleeps: list[float] = []
    with ExitStack() as later:

        def sleep(seconds: float) -> None:
            sleeps.append(seconds)
            if len(sleeps) == 5:
                later.enter_context(running_sandbox(tmp_path, port=port))

        hook = later.enter_context(OutboundTransferHook(sleep=sleep))
        with running_sandbox(tmp_path) as service:
            connect(service.base_url, service.transfer_api_key)
            port = urlsplit(service.base_url).port
            draft = hook.create_transfer(build_new_transfer(subject="S", recipients="ann@example.com"))
        assert hook.get_transfer(draft.id) == draft
    assert len(sleeps) == 5
