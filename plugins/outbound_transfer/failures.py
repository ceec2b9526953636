"""Which errors end a task without a retry: the one place where an error of the protocol becomes one of Airflow's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException


@contextmanager
def failing_at_once() -> Iterator[None]:
    """End the task without a retry where a retry would fail alike (design: promise 5.1).

    :raises AirflowFailException: in the place of such an error, with its text.
    """
    from outbound_transfer.client.settings import InvalidSettings
    from outbound_transfer.delivery import AlreadyDelivered
    from outbound_transfer.protocol.errors import CallError, FileConflict, InvalidDelivery, NameRefused, WrongTransfer
    from outbound_transfer.task_run import GivenUp

    try:
        yield
    except (
        InvalidDelivery,
        NameRefused,
        FileConflict,
        WrongTransfer,
        AlreadyDelivered,
        GivenUp,
        InvalidSettings,
    ) as error:
        raise AirflowFailException(str(error)) from error
    except CallError as error:
        if error.passes:
            raise
        raise AirflowFailException(str(error)) from error
