"""The parts without I/O: windows, names, cursors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from outbound_transfer_sandbox.domain import rate_limit
from outbound_transfer_sandbox.domain.clock import SECOND
from outbound_transfer_sandbox.domain.content_disposition import filename
from outbound_transfer_sandbox.domain.errors import ApiError
from outbound_transfer_sandbox.service.transfers import ListCursor, decode_cursor

T = TypeVar("T")


def answer_or_refusal(read: Callable[[str], T], text: str, status: int) -> T | None:
    """What `read` makes of any text; None when it refuses with `status`, the only error that it may raise."""
    try:
        return read(text)
    except ApiError as error:
        if error.status != status:
            raise
        return None


instants = st.lists(st.integers(0, 200 * SECOND), max_size=30).map(sorted)


@given(counted=instants, later=st.integers(0, 100 * SECOND), limit=st.integers(1, 10), window=st.integers(1, 90))
def test_window(counted: list[int], later: int, limit: int, window: int) -> None:
    """The definition: fewer than `limit` requests in the last `window` seconds; the wait is the shortest in seconds."""
    now = (counted[-1] if counted else 0) + later

    def inside(at: int) -> int:
        return sum(at - window * SECOND < instant <= at for instant in counted)

    wait = rate_limit.retry_after(counted, now, limit, window)
    assert (wait is None) == (inside(now) < limit)
    if wait is not None:
        assert 1 <= wait <= window
        assert inside(now + wait * SECOND) < limit
        assert wait == 1 or inside(now + (wait - 1) * SECOND) >= limit


names = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\"), min_size=1).filter(
    lambda name: name.strip() not in {"", ".", ".."}
)


@given(name=names, directory=st.sampled_from(["", "a/", "/a/b/", "C:\\", "..\\", "../"]))
def test_any_name_survives_its_encodings(name: str, directory: str) -> None:
    octets = (directory + name).encode()
    extended = "".join(f"%{octet:02X}" for octet in octets)
    assert filename(f"attachment; filename*=UTF-8''{extended}") == name
    quoted = octets.decode("latin-1").replace("\\", "\\\\").replace('"', '\\"')
    assert filename(f'attachment; filename="{quoted}"') == name


@given(st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\x00"), max_size=60))
def test_any_header_is_a_name_or_a_refusal(rest: str) -> None:
    for disposition in (rest, f"attachment; {rest}", f"attachment; filename={rest}", f"attachment; filename*={rest}"):
        name = answer_or_refusal(filename, disposition, 400)
        assert name is None or (name and not set(name) & set("/\\\x00\r\n"))


@given(st.builds(ListCursor, *[st.integers(-(2**63), 2**63 - 1)] * 3))
def test_cursors_come_back_as_they_went(position: ListCursor) -> None:
    assert decode_cursor(position.encode()) == position


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_any_other_cursor_is_refused(cursor: str) -> None:
    position = answer_or_refusal(decode_cursor, cursor, 400)
    assert position is None or position.encode() == cursor
