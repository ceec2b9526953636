"""The Retry-After header: never early, never negative, whatever it says (RFC 9110 §10.2.3)."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outbound_transfer.client.transport import parse_retry_after

NOW = datetime(2026, 1, 31, 23, 59, 30, tzinfo=UTC)


def http_date(seconds: float, now: datetime = NOW) -> str:
    return format_datetime(now + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *((value, None) for value in (None, "", "-1", "+5", "1.5", "1e3", "5, 5", "٦", "²", "60s", "NaN", "inf")),
        (" 60 ", 60),
        ("0" * 20 + "9", 9),
        ("9" * 5_000, math.inf),
        (http_date(-3_600), 0),
        ("Sun, 01 Feb 2026 00:00:00 -0000", 30),
        ("Sunday, 01-Feb-26 00:00:00 GMT", 30),
        ("Sun Feb  1 00:00:00 2026", 30),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 251_632_396_829),
        ("Sun, 32 Feb 2026 00:00:00 GMT", None),
        ("Sun, 01 Feb 99999999999999999999 00:00:00 GMT", None),
    ],
)  # fmt: skip
def test_every_form(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, date=http_date(0)) == seconds


@pytest.mark.parametrize("date", [None, "", "yesterday", "0"])
def test_a_date_says_nothing_without_the_services_own_clock(date: str | None) -> None:
    assert parse_retry_after(http_date(90), date=date) is None
    assert parse_retry_after("90", date=date) == 90


dates = st.datetimes().map(lambda moment: format_datetime(moment.replace(tzinfo=UTC), usegmt=True))
parts = st.sampled_from(
    ["Mon", ",", " ", "31", "Jan", "2026", "99999", "23:59:59", "GMT", "+9999", "-0000", "(", ":", "-"]
)
anything = st.none() | st.text() | dates | st.lists(parts).map("".join) | st.lists(parts).map(" ".join)


@given(anything, anything)
@example("Mon, 1 Jan 0001 00:00:00 +2359", "Fri, 31 Dec 9999 23:59:59 -2359")
@example(" ", " ")
def test_any_text_gives_a_valid_delay_or_none(value: str | None, date: str | None) -> None:
    seconds = parse_retry_after(value, date=date)
    assert seconds is None or (not math.isnan(seconds) and seconds >= 0)


@given(st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(9000, 1, 1)), st.integers(0, 10**8))
def test_numbers_and_dates_are_never_early(now: datetime, seconds: int) -> None:
    now = now.replace(tzinfo=UTC, microsecond=0)
    assert parse_retry_after(str(seconds)) == seconds
    assert parse_retry_after(http_date(seconds, now), date=http_date(0, now)) == seconds
