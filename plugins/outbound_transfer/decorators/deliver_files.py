"""``@task.deliver_files``: a task whose function returns what to deliver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from outbound_transfer.airflow_compat.names import determine_kwargs
from outbound_transfer.client.errors import InvalidDelivery
from outbound_transfer.operators.transfer import DeliverFilesOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from outbound_transfer.delivery.delivery import Delivery


class DeliveryRequest(TypedDict, total=False):
    """A ``@task.deliver_files`` function's result instead of files; each key overrides an argument of the decorator.

    None leaves the decorator's argument as it is: a weaker ``security`` never applies silently. For ``files``,
    ``subject`` and ``recipients``, None is refused as empty. The values are as in :class:`.DeliverFilesOperator`.
    """

    files: Any
    archive: str | None
    checksums: str | None
    subject: str
    recipients: Any
    message: str | None
    security: str | None
    security_question: str | None
    security_answer: str | None


_REQUEST_FIELDS: Final = DeliveryRequest.__annotations__.keys()
_REQUIRED_FIELDS: Final = ("files", "subject", "recipients")


class _DeliverFilesDecoratedOperator(DecoratedOperator, DeliverFilesOperator):
    """Delivers what a function returns; see :func:`deliver_files_task`."""

    custom_operator_name = "@task.deliver_files"
    overwrite_rtif_after_execution = True  # shows what the function returned
    found_later = _REQUEST_FIELDS - {"security", "archive", "checksums"}

    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *DeliverFilesOperator.template_fields)

    def __init__(self, *, files: Any = None, subject: Any = None, recipients: Any = None, **kwargs: Any) -> None:
        super().__init__(files=files, subject=subject, recipients=recipients, **kwargs)

    def prepare(self, delivery: Delivery, context: Context) -> None:
        """Call the function, in each process of an attempt, but not before the attempt is stored."""
        arguments = determine_kwargs(self.python_callable, self.op_args, {**context, **self.op_kwargs})
        for name, value in _to_request(self.python_callable(*self.op_args, **arguments)).items():
            setattr(self, name, value)
        self._given = {}  # what a function returns is not a template
        self.hide_secrets()
        delivery.client.secrets.update(self.secrets())


def _to_request(returned: Any) -> DeliveryRequest:
    if returned is None:
        raise InvalidDelivery(
            "the function returned None: return the files to deliver, or raise AirflowSkipException if there are none"
        )
    if not isinstance(returned, Mapping) or {"path", "content"} & returned.keys():
        return {"files": returned}
    if unknown := returned.keys() - _REQUEST_FIELDS:
        raise InvalidDelivery(
            f"the function returned {', '.join(sorted(map(repr, unknown)))}; a mapping must be one file, or have "
            f"only keys of {', '.join(_REQUEST_FIELDS)}"
        )
    given = {field: value for field, value in returned.items() if value is not None or field in _REQUIRED_FIELDS}
    return DeliveryRequest(**given)  # type: ignore[typeddict-item]


def deliver_files_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Turn a function that returns what to deliver into a task: ``@task.deliver_files(subject=…, recipients=…)``.

    :param python_callable: returns files, as for :class:`.AttachFilesOperator`, or a :class:`DeliveryRequest`,
        which is not a template. It is called again in each attempt, and after each deferral before the send.
    :param kwargs: arguments of :class:`.DeliverFilesOperator`, without those that the function always returns.
    """
    # The task returns the transfer, whatever mapping the function is annotated to return.
    return task_decorator_factory(
        python_callable=python_callable,
        decorated_operator_class=_DeliverFilesDecoratedOperator,
        **{"multiple_outputs": False, **kwargs},
    )
