"""Notifications of transfers in Slack, through an incoming webhook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outbound_transfer.notifications.base import TransferNotice, TransferNotifier


class TransferSlackNotifier(TransferNotifier):
    """Posts to a Slack channel; see :class:`.TransferNotifier`. Needs the extra ``slack``.

    :param slack_webhook_conn_id: connection of the incoming webhook, as for Airflow's ``SlackWebhookNotifier``.
    """

    template_fields: Sequence[str] = (*TransferNotifier.template_fields, "slack_webhook_conn_id")

    def __init__(
        self,
        *,
        slack_webhook_conn_id: str = "slack_default",
        title: str | None = None,
        task_id: str | None = None,
        outbound_transfer_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(title=title, task_id=task_id, outbound_transfer_conn_id=outbound_transfer_conn_id, **kwargs)
        self.slack_webhook_conn_id = slack_webhook_conn_id

    def build_sender(self, notice: TransferNotice) -> Any:
        from airflow.providers.slack.notifications.slack_webhook import SlackWebhookNotifier

        return SlackWebhookNotifier(
            slack_webhook_conn_id=self.slack_webhook_conn_id,
            text=to_mrkdwn(notice),
            unfurl_links=False,
            unfurl_media=False,
        )


def to_mrkdwn(notice: TransferNotice) -> str:
    """Return the notification in Slack's markup; nothing in it mentions a person or channel, or links elsewhere."""
    link = [f"<{_escape(notice.url).replace('|', '%7C')}|Open the transfer>"] if notice.url else []
    return "\n".join([f"*{_escape(notice.title)}*", *map(_escape, notice.lines), *link])


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
