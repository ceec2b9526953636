"""Begin a delivery: that of a task instance, or that of a delivery key, which is sent once across tasks, runs and DAGs.

The memory of a key is in its row (:mod:`outbound_transfer.warehouse.memory_table`), so whoever claims the key goes on
where its last owner stopped. A claim waits for an owner that Airflow runs, or is going to; it fails meanwhile, so that
Airflow retries it. An owner presumed dead by mistake can no longer read or write.

The task instance's own memory says where it has worked: in which account, and under which key. A try that works
elsewhere first makes sure that nothing can be sent any more of what was begun there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outbound_transfer.airflow_compat.run_state import find_state
from outbound_transfer.airflow_compat.task_loops import refuse_loop
from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.delivery.delivery import Delivery
from outbound_transfer.delivery.memory import Likeness, Memory, Scope, scope_of
from outbound_transfer.delivery.memory_store import MemoryStore, RowMemoryStore, task_memory
from outbound_transfer.delivery.task_facts import TaskFacts
from outbound_transfer.protocol.ids import check_delivery_key
from outbound_transfer.warehouse.config import require_memory_place

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Logger

    from outbound_transfer.client import Client
    from outbound_transfer.warehouse.memory_table import MemoryRow

#: States of a task that does not run, and is not going to unless somebody clears it; None if Airflow has none.
_FINISHED: Final = frozenset({"success", "failed", "skipped", "upstream_failed", "removed", None})


def open_task_memory(context: Context, facts: TaskFacts) -> MemoryStore:
    """Return the memory of the running task instance, which earlier tries can no longer read or write from now on.

    :raises StaleTry: a later try has begun.
    :raises TaskInLoop: the task is in a loop.
    """
    refuse_loop(context)
    memory = task_memory(context, is_resumed=facts.is_resumed, newest_before=facts.newest_before)
    if isinstance(memory, RowMemoryStore):
        memory.row.claim()
    return memory


def begin_delivery(
    client: Client,
    context: Context,
    log: Logger,
    *,
    facts: TaskFacts,
    delivery_key: str | None = None,
    **options: Any,
) -> Delivery:
    """Return the delivery of the running try, which has begun.

    :param options: of :class:`.Delivery`.
    :raises AlreadyDelivered: the task has delivered under another key, or may have.
    :raises DeliveryKeyInUse: another task that Airflow runs, or is going to, delivers under the key.
    :raises InvalidDelivery: the key cannot be one.
    :raises NoMemoryTable: there is no database to keep the memory in.
    """
    key = "" if delivery_key is None else check_delivery_key(delivery_key)
    settings = client.settings
    scope = scope_of(settings.account, settings.transfer_api_key)
    own = Delivery(client, open_task_memory(context, facts), log, facts=facts, scope=scope, **options)
    own.begin()
    before, scope, question = own.memory.scope, msgspec.structs.replace(scope, delivery_key=key), own.memory.question
    was_here = (before.account, before.delivery_key) == (scope.account, key)
    if before.delivery_key and not was_here:
        left_open = _withdraw_key(client, context, log, before, scope, facts)
        question = left_open.or_wider(question) if left_open else question
    if not key:
        if question is not own.memory.question:
            own.keep(question=question)
        return own
    if not before.delivery_key:
        own.withdraw()
    own.draft.keep(Memory(facts.writer, scope, question=question))  # nothing of it can be sent any more
    row = _open_key(context, scope)
    row.claim(_is_in_use(context))
    keyed_facts = TaskFacts(context, is_resumed=row.is_resumed, delivery_key=key)
    store = RowMemoryStore(row, expected=facts.newest_before if was_here else 0, task=keyed_facts.writer.task)
    keyed = Delivery(
        client,
        store,
        log,
        facts=keyed_facts,
        scope=scope,
        is_of_other_key=lambda transfer_id: bool(row.of_other_keys(transfer_id)),
        **options,
    )
    if row.is_sent:
        keyed.draft.memory = store.read_sent()
    else:
        keyed.begin(question)
    return keyed


def _is_in_use(context: Context) -> Callable[[TaskTry], bool]:
    """Return what says whether Airflow runs the owner of a row, or is going to."""
    return lambda owner: find_state(context, *owner.task) not in _FINISHED


def _open_key(context: Context, scope: Scope) -> MemoryRow:
    table = require_memory_place("delivery_key").open()
    return table.of_delivery_key(scope.account, scope.delivery_key, TaskTry.of(context))


def _withdraw_key(
    client: Client, context: Context, log: Logger, then: Scope, now: Scope, facts: TaskFacts
) -> Likeness | None:
    """Settle what this task has begun under another key, or in another account; return the question left open there.

    :raises DeliveryKeyInUse: another task goes on with it; what this one has sent is known once that has ended.
    """
    row = _open_key(context, then)
    row.claim(_is_in_use(context))
    keyed_facts = TaskFacts(context, is_resumed=facts.is_resumed, delivery_key=then.delivery_key)
    store = RowMemoryStore(row, expected=1)
    old = Delivery(client, store, log, facts=keyed_facts, scope=now)
    if row.is_sent:
        old.draft.memory = store.read_sent()
    else:
        old.begin()
    old.withdraw()
    return old.memory.question


def read_memory(context: Context) -> Memory | None:
    """Return what the delivery of a task instance remembers; None if it remembers nothing. Nothing is claimed."""
    memory = task_memory(context).read()
    if memory and memory.scope.delivery_key:
        return RowMemoryStore(_open_key(context, memory.scope)).read()
    return memory
