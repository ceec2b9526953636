"""The service's two APIs over HTTP: one synchronous client with a method for each endpoint. It knows no Airflow."""

from outbound_transfer.client.client import Client
from outbound_transfer.client.models import Attached, Discarded, Upload
from outbound_transfer.client.retry import RetryPolicy
from outbound_transfer.client.settings import Settings
from outbound_transfer.client.transport import Observer, Request

__all__ = ["Attached", "Client", "Discarded", "Observer", "Request", "RetryPolicy", "Settings", "Upload"]
