"""The first event of a trigger, as the triggerer runs it."""

from __future__ import annotations

from typing import Any


async def first_event(trigger: Any) -> Any:
    """Return the event of a trigger that polls by itself."""
    return await anext(trigger.run())


async def first_shared_event(trigger: Any) -> Any:
    """Return the event of a trigger on the shared poll."""
    producer = type(trigger).create_shared_stream_producer(trigger.serialize()[1])

    async def stream() -> Any:
        async for update, _ in producer.open_stream():
            yield update

    return await anext(trigger.filter_shared_stream(stream()))
