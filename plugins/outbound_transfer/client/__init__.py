"""Drives the protocol over httpx, sync and async, with one retry policy."""

from outbound_transfer.client.client import AsyncClient, Client
from outbound_transfer.client.retry import RetryPolicy
from outbound_transfer.client.settings import Settings

__all__ = ["AsyncClient", "Client", "RetryPolicy", "Settings"]
