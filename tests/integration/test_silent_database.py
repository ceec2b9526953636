"""Real databases behind a proxy that goes silent in mid-transaction and keeps its connections, as after a power cut."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from outbound_transfer.cluster import database
from outbound_transfer.cluster.allowance import SharedAllowance
from outbound_transfer.cluster.database import (
    CALLS,
    LOCK_TIMEOUT,
    RETRY_INTERVAL,
    DatabaseUnavailable,
    SharedDatabase,
    find_database,
)
from outbound_transfer.ledger.config import LedgerConfig, find_ledger_connection, open_ledger
from outbound_transfer.queries.connection import query_result
from outbound_transfer.warehouse import connection, sockets
from outbound_transfer.warehouse.config import MemoryPlace
from outbound_transfer.warehouse.database import Warehouse
from outbound_transfer.warehouse.key_allowance import Key, reserve_call
from outbound_transfer.warehouse.schema import CLUSTER, ensure_schema
from outbound_transfer.warehouse.sockets import IDLE_SECONDS
from outbound_transfer.warehouse.timestamps import utc_now
from support.silent_proxy import SilentProxy, silent_proxy
from support.timeouts import TEST_TIMEOUT, eventually
from support.warehouses import Hook

KEY = Key("account.example.com", "digest", "outbound_transfer_default", 60)

#: Locks the row of the key, in the middle of a transaction.
LOCKS = b"key_allowance"


@dataclass
class Scene:
    """A database, directly and through a proxy."""

    hook: Hook
    proxied: Hook
    proxy: SilentProxy


@pytest.fixture(params=["psycopg", "psycopg2", "mysqlclient"])
def scene(request: pytest.FixtureRequest, hook_of: Callable[[str], Hook]) -> Iterator[Scene]:
    name, hook = request.param, hook_of(request.param)
    if name == "mysqlclient":
        mariadb = request.getfixturevalue("mariadb")
        target = ("127.0.0.1", mariadb.port)
    else:
        target = f"{request.getfixturevalue('postgres').host}/.s.PGSQL.5432"
    with silent_proxy(target) as proxy:
        if name == "mysqlclient":
            connect = partial(mariadb.connect_by_port, name, proxy.port)
        else:
            connect = partial(request.getfixturevalue("postgres").connect_by_port, name, proxy.port)
        ensure_schema(Warehouse(hook), CLUSTER, utc_now())
        yield Scene(hook, Hook(hook.dialect_name, connect, hook.placeholder), proxy)


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "outbound-transfer-cluster"}


def test_a_process_shares_again_after_its_database_was_silent(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before, now = threads(), [0.0]
    shared = SharedDatabase("state", lambda: Warehouse(scene.proxied, timeout=LOCK_TIMEOUT), clock=lambda: now[0])
    allowance = SharedAllowance(shared, KEY, is_poll=False)
    monkeypatch.setattr(database, "TIMEOUT", TEST_TIMEOUT)
    assert shared.run(Warehouse.now)
    scene.proxy.silence(LOCKS, is_delivered=False)
    hanging = shared.submit(lambda warehouse: reserve_call(warehouse, KEY, is_poll=False))
    assert scene.proxy.is_silent.wait(TEST_TIMEOUT)
    stuck = threads() - before
    monkeypatch.setattr(database, "TIMEOUT", 0.05)
    assert allowance.reserve() == 0.0, "the call is made at once"
    assert shared.has_failed
    scene.proxy.heal()
    now[0] += RETRY_INTERVAL
    monkeypatch.setattr(database, "TIMEOUT", 20)
    shared.run(lambda warehouse: reserve_call(warehouse, KEY, is_poll=False))
    assert not shared.has_failed
    with pytest.raises(Exception, match=r".") as lost:
        hanging.result(TEST_TIMEOUT)
    assert not isinstance(lost.value, (TimeoutError, DatabaseUnavailable)), "the driver says that it is broken"
    assert stuck
    eventually(lambda: not any(each.is_alive() for each in stuck))


def test_a_silent_client_keeps_no_lock(scene: Scene) -> None:
    """The server gives it up: until then, no process could share the key's calls."""
    reserve_call(Warehouse(scene.hook, timeout=LOCK_TIMEOUT), KEY, is_poll=False)
    scene.proxy.silence(LOCKS, is_delivered=True)
    silent = Warehouse(scene.proxied, timeout=1.0)

    def lock() -> None:
        with suppress(Exception), silent.transaction() as tx:
            silent.run(tx, "UPDATE {key_allowance} SET [updated_at] = [updated_at] WHERE [account] = ?", KEY[:1])

    client = threading.Thread(target=lock)
    client.start()
    assert scene.proxy.is_silent.wait(TEST_TIMEOUT)

    def is_free() -> bool:
        try:
            reserve_call(Warehouse(scene.hook, timeout=1.0), KEY, is_poll=False)
        except Exception:
            return False
        return True

    eventually(is_free)
    silent.abort()
    client.join(TEST_TIMEOUT)
    assert not client.is_alive()


@pytest.mark.parametrize(("timeout", "idle"), [(None, IDLE_SECONDS), (LOCK_TIMEOUT, LOCK_TIMEOUT)])
def test_the_kernel_probes_a_server_that_says_nothing(scene: Scene, timeout: float | None, idle: float) -> None:
    with Warehouse(scene.proxied, timeout=timeout).read() as tx:
        inner = getattr(tx, "connection", None) or tx._inner.connection
        with closing(socket.socket(fileno=os.dup(inner.fileno()))) as opened:
            assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == idle
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) <= idle
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 3 * idle * 1_000


@pytest.fixture
def silent_postgres(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentProxy]:
    """A server that says nothing to whoever connects to it, behind the connection `silent`."""
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 2)  # the least that the driver knows
    with silent_proxy(f"{postgres.host}/.s.PGSQL.5432") as proxy:
        monkeypatch.setenv("AIRFLOW_CONN_SILENT", postgres.connection_by_port(proxy.port))
        yield proxy


def query() -> None:
    with query_result("silent", "SELECT 1 AS one"):
        pass


def read_memory() -> None:
    MemoryPlace("silent").open().clean(utc_now())


def read_ledger() -> None:
    config = LedgerConfig("silent", "", None)
    with open_ledger(config, 1.0, find_ledger_connection(config)).read():
        pass


@pytest.mark.parametrize("connect", [query, read_memory, read_ledger])
def test_a_server_that_is_silent_at_the_login_is_given_up(
    silent_postgres: SilentProxy, connect: Callable[[], None]
) -> None:
    silent_postgres.silence(b"postgres", is_delivered=False)
    with ThreadPoolExecutor() as pool:
        try:
            with pytest.raises(Exception, match="timeout"):
                pool.submit(connect).result(TEST_TIMEOUT)
        finally:
            silent_postgres.close()  # what waits without end is let go


def test_the_kernel_probes_the_server_of_a_query(silent_postgres: SilentProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[tuple[int, float]] = []
    monkeypatch.setattr(sockets, "limit_silence", lambda sock, seconds: probed.append((sock.getpeername()[1], seconds)))
    query()
    assert probed == [(silent_postgres.port, IDLE_SECONDS)]


def test_the_shared_database_of_airflows_connection(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_proxy(f"{postgres.host}/.s.PGSQL.5432") as proxy:
        monkeypatch.setenv("AIRFLOW_CONN_LEDGER", postgres.connection_by_port(proxy.port))
        monkeypatch.setenv("AIRFLOW__OUTBOUND_TRANSFER__LEDGER_CONN_ID", "ledger")
        monkeypatch.setattr(database, "_databases", {})
        monkeypatch.setattr(database, "TIMEOUT", TEST_TIMEOUT)
        shared = find_database(CALLS)
        assert shared is not None
        proxy.silence(b"outbound_transfer_schema_version", is_delivered=False)
        hanging = shared.submit(str)
        assert proxy.is_silent.wait(TEST_TIMEOUT), "while its tables are created"
        monkeypatch.setattr(database, "TIMEOUT", 0.05)
        with pytest.raises(DatabaseUnavailable):
            shared.run(str)
        with pytest.raises(Exception, match=r"(?i)closed|terminat|lost|EOF|SSL SYSCALL"):
            hanging.result(TEST_TIMEOUT)
        proxy.heal()
        monkeypatch.setattr(database, "RETRY_INTERVAL", 0.0)
        monkeypatch.setattr(shared, "_clock", lambda: float("inf"))
        monkeypatch.setattr(database, "TIMEOUT", TEST_TIMEOUT)
        shared = find_database(CALLS)
        assert shared is not None
        assert shared.run(Warehouse.now)
        assert not shared.has_failed
