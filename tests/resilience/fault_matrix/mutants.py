"""Safeguards of the provider taken out, to test that the tests notice."""

from __future__ import annotations

import pytest

from outbound_transfer.delivery import state as states
from outbound_transfer.delivery.delivery import Delivery


def storing_the_id_after_the_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery remembers its draft only when it has sent it."""
    save, send = states.save, Delivery.send

    def send_then_save(self: Delivery, state: states.DeliveryState, *arguments: object) -> object:
        transfer = send(self, state, *arguments)
        save(self.store, state)
        return transfer

    def save_without_id(store: states.StateStore, state: states.DeliveryState, *of_try: int) -> None:
        if not state.transfer_id:
            save(store, state, *of_try)

    monkeypatch.setattr(states, "save", save_without_id)
    monkeypatch.setattr(Delivery, "send", send_then_save)
