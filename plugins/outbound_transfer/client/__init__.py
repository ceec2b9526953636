"""Drives the protocol over httpx, sync and async, with one retry policy."""

from outbound_transfer.client.client import AsyncClient, Client
from outbound_transfer.client.observer import Asked, Observer
from outbound_transfer.client.retry import RetryPolicy
from outbound_transfer.client.settings import Settings

__all__ = ["Asked", "AsyncClient", "Client", "Observer", "RetryPolicy", "Settings"]
