"""The HTTP client: runs the protocol over httpx, sync and async, with one retry policy."""

from outbound_transfer.client.client import AsyncClient, Client
from outbound_transfer.client.observer import CallAttempt, Observer
from outbound_transfer.client.retry import RetryPolicy
from outbound_transfer.client.settings import Settings

__all__ = ["AsyncClient", "CallAttempt", "Client", "Observer", "RetryPolicy", "Settings"]
