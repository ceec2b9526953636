"""Notifications of transfers by email."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from outbound_transfer.notifications.base import TransferNotice, TransferNotifier


class TransferSmtpNotifier(TransferNotifier):
    """Sends an email; see :class:`.TransferNotifier`. Needs the extra ``smtp``.

    :param to: one or several addresses.
    :param from_email: the sender; by default that of the connection.
    :param smtp_conn_id: the SMTP connection, as for Airflow's ``SmtpNotifier``.
    """

    template_fields: Sequence[str] = (*TransferNotifier.template_fields, "to", "from_email", "smtp_conn_id")

    def __init__(
        self,
        *,
        to: str | Iterable[str],
        from_email: str | None = None,
        smtp_conn_id: str = "smtp_default",
        title: str | None = None,
        task_id: str | None = None,
        outbound_transfer_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(title=title, task_id=task_id, outbound_transfer_conn_id=outbound_transfer_conn_id, **kwargs)
        self.to, self.from_email, self.smtp_conn_id = to, from_email, smtp_conn_id

    def build_sender(self, notice: TransferNotice) -> Any:
        from airflow.providers.smtp.notifications.smtp import SmtpNotifier

        return SmtpNotifier(
            to=self.to,
            from_email=self.from_email,
            smtp_conn_id=self.smtp_conn_id,
            subject=notice.title,
            html_content=to_html(notice),
        )


def to_html(notice: TransferNotice) -> str:
    """Return the notification as HTML, in which everything but the link and the tags is escaped."""
    link = [f'<p><a href="{escape(notice.url)}">Open the transfer</a></p>'] if notice.url else []
    return "\n".join([f"<h3>{escape(notice.title)}</h3>", *(f"<p>{escape(line)}</p>" for line in notice.lines), *link])
