"""The two drivers of a flow. Sync and async code differ here and in :mod:`.transport` only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, TypeVar

from outbound_transfer.protocol.errors import CallError
from outbound_transfer.protocol.messages import Call, Flow

T = TypeVar("T")


def drive(flow: Flow[T], perform: Callable[[Call[Any]], Any]) -> T:
    """Run a flow to its result.

    :param perform: performs a call and returns its decoded response.
    :raises Exception: any error that the flow raises. A ``CallError`` of ``perform`` is thrown into the flow, which may
        handle it; any other exception closes the flow and is raised as it is.
    """
    with closing(flow):
        try:
            call = next(flow)
            while True:
                try:
                    result = perform(call)
                except CallError as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


async def drive_async(flow: Flow[T], perform: Callable[[Call[Any]], Awaitable[Any]]) -> T:
    """Run a flow to its result, like :func:`drive`, and await each call."""
    with closing(flow):
        try:
            call = next(flow)
            while True:
                try:
                    result = await perform(call)
                except CallError as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
