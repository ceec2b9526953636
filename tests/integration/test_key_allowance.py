"""What is shared of a key in each database: sessions change it one after the other, by the database's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from outbound_transfer.protocol.call_schedule import MARGIN, WINDOW
from outbound_transfer.protocol.models import Recipient, Transfer, TransferPage
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.key_allowance import (
    CLAIM_SECONDS,
    KEEP_SECONDS,
    READ_SECONDS,
    Key,
    PageClaim,
    claim_page,
    forget_pages,
    record_refusal,
    reserve_call,
    store_page,
)
from outbound_transfer.warehouse.schema import CLUSTER, ensure_schema
from outbound_transfer.warehouse.timestamps import utc_now
from support.warehouses import Hook

KEY = Key("account.example.com", "digest", "outbound_transfer_default", 60)
NOW = 1_790_000_000.0
PAGE_SECONDS = 20.0
TRANSFER = Transfer("t1", "pending", "Repört \0", recipients=(Recipient("ann@example.com"),))
PAGE = TransferPage((TRANSFER,), next_cursor="next")


@pytest.fixture(params=["sqlite", "psycopg", "psycopg2", "mysqlclient"])
def warehouse_hook(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Hook:
    """A hook of each database that processes can share."""
    return hook_of(request.param)


@pytest.fixture
def warehouse(warehouse_hook: Hook) -> Warehouse:
    """Its clock stands still, so that the machine's speed plays no part."""
    warehouse = Warehouse(warehouse_hook)
    ensure_schema(warehouse, CLUSTER, utc_now())
    warehouse.epoch_time = lambda tx: NOW  # type: ignore[method-assign]
    return warehouse


def test_the_databases_clock(warehouse_hook: Hook) -> None:
    warehouse = Warehouse(warehouse_hook)
    with warehouse.read() as tx:
        assert abs(warehouse.epoch_time(tx) - time.time()) < 60


def test_sessions_at_once_share_one_allowance(warehouse: Warehouse) -> None:
    def reserve(_: int) -> float:
        return reserve_call(warehouse, KEY, is_poll=False)

    with ThreadPoolExecutor(4) as pool:
        delays = sorted(pool.map(reserve, range(70)))
    assert delays == [0.0] * 60 + [WINDOW + MARGIN] * 10


@pytest.mark.parametrize("name", ["psycopg", "psycopg2", "mysqlclient"])  # the others let one session write at a time
def test_a_row_that_appears_between_two_statements_is_locked(hook_of: Callable[[str], Hook], name: str) -> None:
    hook = hook_of(name)
    first, second = Warehouse(hook), Warehouse(hook)
    ensure_schema(first, CLUSTER, utc_now())
    run, clock = first.run, first.epoch_time
    others: list[Future[PageClaim]] = []

    def run_and_let_the_row_appear(tx: Any, statement: str, parameters: Any = (), **names: Any) -> Any:
        result = run(tx, statement, parameters, **names)
        if statement.startswith("UPDATE") and not others:
            reserve_call(second, KEY, is_poll=False)
        return result

    def read_clock_while_another_claims(tx: Any) -> float:
        if not others:
            others.append(pool.submit(claim_page, second, KEY, "a", PAGE_SECONDS))
            wait(others, timeout=0.5)  # which it spends at the lock
        return clock(tx)

    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(first, "run", run_and_let_the_row_appear)
        patch.setattr(first, "epoch_time", read_clock_while_another_claims)
        claims = [claim_page(first, KEY, "a", PAGE_SECONDS), others[0].result()]
    assert [claim.number is not None for claim in claims] == [True, False]


def test_keys_do_not_share(warehouse: Warehouse) -> None:
    for key in (KEY, KEY._replace(digest="other"), KEY._replace(account="other")):
        assert [reserve_call(warehouse, key, is_poll=False) for _ in range(10)] == [0.0] * 10


def test_a_refusal_holds_up_every_session(warehouse: Warehouse) -> None:
    assert reserve_call(warehouse, KEY, is_poll=False) == 0.0
    record_refusal(warehouse, KEY, 30.0)
    assert reserve_call(warehouse, KEY, is_poll=False) == 30.0


def test_what_operations_can_see(warehouse: Warehouse, warehouse_hook: Hook) -> None:
    for _ in range(61):
        reserve_call(warehouse, KEY, is_poll=False)
    record_refusal(warehouse, KEY, 5.0)
    ((conn_id, calls, is_refused, is_ahead),) = warehouse_hook.fetch(
        "SELECT conn_id, calls_per_minute, refused_at IS NOT NULL, reserved_until > updated_at "
        "FROM outbound_transfer_key_allowance"
    )
    assert (conn_id, calls, bool(is_refused), bool(is_ahead)) == ("outbound_transfer_default", 60, True, True)


def test_a_row_that_was_deleted_is_created_again(warehouse: Warehouse, warehouse_hook: Hook) -> None:
    reserve_call(warehouse, KEY, is_poll=False)
    warehouse_hook.run("DELETE FROM outbound_transfer_key_allowance")
    assert [reserve_call(warehouse, KEY, is_poll=False) for _ in range(3)] == [0.0] * 3
    assert warehouse_hook.fetch("SELECT count(*) FROM outbound_transfer_key_allowance") == [(1,)]


@pytest.mark.parametrize("stored", ["", "[]", "{", '{"calls": ["x"]}'])
def test_a_schedule_that_cannot_be_read_is_begun_anew(warehouse: Warehouse, warehouse_hook: Hook, stored: str) -> None:
    reserve_call(warehouse, KEY, is_poll=False)
    warehouse_hook.run(f"UPDATE outbound_transfer_key_allowance SET schedule = '{stored}'")
    assert reserve_call(warehouse, KEY, is_poll=False) == 0.0


# ------------------------------------------------------------------------------------------------ pages of a listing


def claim(warehouse: Warehouse, listing: str = "a", key: Key = KEY, later: float = 0.0) -> PageClaim:
    """The claim of another process, so many seconds later."""
    warehouse.epoch_time = lambda tx: NOW + later  # type: ignore[method-assign]
    return claim_page(warehouse, key, listing, PAGE_SECONDS)


def test_of_those_that_want_a_page_one_reads_it(warehouse: Warehouse) -> None:
    with ThreadPoolExecutor(4) as pool:
        claims = list(pool.map(lambda _: claim_page(warehouse, KEY, "a", PAGE_SECONDS), range(8)))
    assert sum(one.number is not None for one in claims) == 1
    assert all(one.page is None for one in claims)


def test_a_page_is_of_use_for_a_moment(warehouse: Warehouse) -> None:
    number = claim(warehouse).number
    assert number
    assert claim(warehouse, later=PAGE_SECONDS - 1) == PageClaim()
    store_page(warehouse, KEY, "a", number, PAGE)
    assert claim(warehouse, later=PAGE_SECONDS - 1) == PageClaim(PAGE)
    assert claim(warehouse, later=PAGE_SECONDS).number, "too old, as it may be as old as its claim"


@pytest.mark.parametrize("page", [None, TransferPage((Transfer("t1", "complete", "half \ud800"),))])
def test_a_page_that_is_not_stored_is_read_by_the_next_one(warehouse: Warehouse, page: TransferPage | None) -> None:
    number = claim(warehouse).number
    assert number
    store_page(warehouse, KEY, "a", number, page)
    assert claim(warehouse, later=1).number


def test_who_died_is_not_waited_for_and_stores_nothing_later(warehouse: Warehouse) -> None:
    number = claim(warehouse).number
    assert number
    assert claim(warehouse, later=READ_SECONDS).number
    store_page(warehouse, KEY, "a", number, PAGE)
    assert claim(warehouse, later=READ_SECONDS) == PageClaim()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_call_that_waits_for_its_turn_is_waited_for(warehouse: Warehouse, is_refused: bool) -> None:
    assert claim(warehouse).number
    if is_refused:
        record_refusal(warehouse, KEY, 50)
    else:
        calls = [reserve_call(warehouse, KEY, is_poll=is_poll) for is_poll in [False] * 60 + [True] * 5]
        assert calls[-1] == WINDOW + MARGIN
    turn = 50.0 if is_refused else WINDOW + MARGIN
    assert claim(warehouse, later=turn + READ_SECONDS - 1) == PageClaim()
    assert claim(warehouse, later=turn + READ_SECONDS).number


def test_who_waits_for_turn_after_turn_is_not_waited_for(warehouse: Warehouse) -> None:
    assert claim(warehouse).number
    warehouse.epoch_time = lambda tx: NOW + CLAIM_SECONDS - 1  # type: ignore[method-assign]
    record_refusal(warehouse, KEY, 50)
    assert claim(warehouse, later=CLAIM_SECONDS - 1) == PageClaim()
    assert claim(warehouse, later=CLAIM_SECONDS).number


@pytest.mark.parametrize("text", ["Łódź €", "😀", "\0"])
def test_a_page_needs_no_character_that_a_database_does_not_have(
    warehouse: Warehouse, warehouse_hook: Hook, text: str
) -> None:
    number = claim(warehouse).number
    assert number
    page = TransferPage((Transfer("t1", "pending", text),))
    store_page(warehouse, KEY, "a", number, page)
    ((stored,),) = warehouse_hook.fetch("SELECT page FROM outbound_transfer_poll_pages")
    assert stored.isascii()
    assert stored.isprintable()
    assert claim(warehouse, later=1) == PageClaim(page)


def test_pages_are_those_of_one_key_and_listing(warehouse: Warehouse) -> None:
    for key in (KEY, KEY._replace(digest="other"), KEY._replace(account="other")):
        for listing in "ab":
            assert claim(warehouse, listing, key).number
    forget_pages(warehouse, KEY)
    assert claim(warehouse).number
    assert claim(warehouse, key=KEY._replace(digest="other")) == PageClaim()


def test_old_pages_are_removed(warehouse: Warehouse, warehouse_hook: Hook) -> None:
    claim(warehouse, "b")
    claim(warehouse, "b", KEY._replace(account="other", digest="of a key of before"))
    claim(warehouse, "c", later=7_200)  # by a clock that was set back since
    claim(warehouse, "a", later=KEEP_SECONDS + 1)
    assert warehouse_hook.fetch("SELECT listing FROM outbound_transfer_poll_pages") == [("a",)]


@pytest.mark.parametrize("stored", ["", "{", "[]", '{"data": [{}]}'])
def test_a_page_that_cannot_be_used_is_read_again(warehouse: Warehouse, warehouse_hook: Hook, stored: str) -> None:
    number = claim(warehouse).number
    assert number
    store_page(warehouse, KEY, "a", number, PAGE)
    warehouse_hook.run(f"UPDATE outbound_transfer_poll_pages SET page = '{stored}'")
    assert claim(warehouse).number
