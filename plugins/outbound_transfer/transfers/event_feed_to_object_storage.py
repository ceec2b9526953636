"""The operator that loads the account's event feed into object storage (service-api.md, R40 to R47)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outbound_transfer.assets.outbound_transfer import folder_asset
from outbound_transfer.transfers.event_feed import EventFeedOperator
from outbound_transfer.warehouse.naming import check_path

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from outbound_transfer.hooks.outbound_transfer import OutboundTransferHook
    from outbound_transfer.warehouse.destination import EventDestination


class EventFeedToObjectStorageOperator(EventFeedOperator):
    """Load the event feed into objects in a folder, from the stored cursor to the end, each page exactly once.

    Each page is one object, ``<path>/account=<account>/page-<cursor, 20 digits>.parquet``, with its events and its
    rejected lines (:data:`outbound_transfer.lake.rows.SCHEMA`). It is put only if it is not there, and has the cursor
    of the next page in its header, so the greatest name is the cursor. To read the feed again from its beginning:
    ``outbound-transfer feed reset --path … --to 0``.

    A run that loaded events emits an asset event for the folder
    (:func:`~outbound_transfer.assets.outbound_transfer.folder_asset`). Its ``extra`` is the operator's return value,
    and ``account``.

    An ``X-Next-Cursor`` that is further beyond the lines of its page than those before it is stored only after a
    second response, a minute later, claims about as much.

    :param path: folder, as Airflow's object storage names it: ``s3://conn@bucket/folder``, ``gs://…``, ``abfs://…`` or
        an absolute local path. The storage must be able to refuse to create an object that exists.
    :param account: name of the account in the folder. Default: its site address.
    :param max_pages: maximum number of pages to load, of up to 1,000 events each, one a minute. ``None``: no limit.
    :param max_rejected: maximum number of unparsable lines per page. If exceeded, the page is not loaded and the task
        fails without retry. ``None``: no limit.
    :param outbound_transfer_conn_id: connection of the service; its extra field ``event_api_key`` is the key.
    :param deferrable: whether to give the worker slot back between pages, and for delays that the service asks for.
    :return: a mapping: ``pages``, ``events``, ``new_events``, ``rejected``, ``cursor_from``, ``cursor_to``,
        ``has_more``, ``types`` (number of events by type).
    """

    template_fields: Sequence[str] = (*EventFeedOperator.template_fields, "path")

    def __init__(
        self,
        *,
        path: str,
        account: str | None = None,
        max_pages: int | None = None,
        max_rejected: int | None = 100,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            account=account,
            max_pages=max_pages,
            max_rejected=max_rejected,
            outbound_transfer_conn_id="outbound_transfer_default",
            deferrable=False,
            **kwargs,
        )
        self.path = path
        check_path(path)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Return what was read and written; called by the OpenLineage provider if it is installed."""
        from outbound_transfer.operators.openlineage import folder_lineage

        return folder_lineage("events", self)

    def _open_destination(self, hook: OutboundTransferHook) -> EventDestination:
        from outbound_transfer.lake.object_store import open_store
        from outbound_transfer.lake.objects import ObjectEventDestination

        return ObjectEventDestination(open_store(self.path), self._account(hook))

    def _asset(self) -> Asset:
        return folder_asset(self.path)
