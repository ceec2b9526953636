"""The real account that the contract tests run against, where the environment names one, and how it differs.

A run of these tests against an account creates drafts, sends transfers to addresses under example.com and waits out
every rate limit. Nothing of it is cleaned up: a transfer that was sent cannot be.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import httpx

DIFFERENCES = Path(__file__).resolve().parents[1] / "sandbox/contract/differences.json"
_PATIENCE = 5


@dataclass(frozen=True)
class Account:
    """Where it is and its keys, named as those of a sandbox are."""

    base_url: str
    transfer_api_key: str
    event_api_key: str


def account(environment: Mapping[str, str] = os.environ) -> Account | None:
    """None where no address is given. Raises KeyError for a missing key."""
    if not (base_url := environment.get("OUTBOUND_TRANSFER_BASE_URL")):
        return None
    keys = environment["OUTBOUND_TRANSFER_API_KEY"], environment["OUTBOUND_TRANSFER_EVENT_API_KEY"]
    return Account(base_url.rstrip("/"), *keys)


class RateLimitWaitingTransport(httpx.HTTPTransport):
    """Waits out 429: an account's rates cannot be lifted."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(_PATIENCE):
            response = super().handle_request(request)
            if response.status_code != 429:
                return response
            response.read()
            time.sleep(int(response.headers["Retry-After"]))
        return response


@dataclass(frozen=True)
class Difference:
    """What a real account was seen to do otherwise than service-api.md, or than the sandbox where that is silent.

    :ivar seen: the day of the run that showed it.
    :ivar test: the test that it breaks, as `test_file.py::test_name` with its parameters.
    """

    seen: date
    test: str
    expected: str
    observed: str


def differences(text: str | None = None) -> list[Difference]:
    """Those on record, a JSON list of objects with the fields of `Difference`. Raises where one is not of this form."""
    rows = json.loads(DIFFERENCES.read_text() if text is None else text)
    return [Difference(**{**row, "seen": date.fromisoformat(row["seen"])}) for row in rows]
