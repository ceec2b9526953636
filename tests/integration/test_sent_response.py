"""The response to the send is compared with what was meant; a difference is an error (docs/guarantees.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.operators.transfer import (
    AttachFilesOperator,
    CreateTransferOperator,
    DeliverFilesOperator,
    SendTransferOperator,
)
from support.deliveries import task_instance
from support.tasks import SimulatedClock

DELIVERY = {"subject": "R", "message": "Hello", "recipients": [{"email": "ann@example.com", "name": "Ann"}]}


@pytest.mark.parametrize("kind", ["one task", "three tasks"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("subject", '"Other"'),
        ("id", '"tr_other"'),
        ("files", "[]"),
        ("files", '[{"id": "fl_other", "name": "other.csv", "size": 9}]'),
        ("recipients", '[{"email": "eve@example.com", "name": "Eve", "picked_up_at": null}]'),
    ],
)
def test_a_response_to_the_send_that_differs_is_an_error(
    connection: str, sandbox: Any, tmp_path: Path, kind: str, field: str, value: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a")
    time = SimulatedClock(sandbox)
    create = task_instance(CreateTransferOperator, time, **DELIVERY)
    if kind == "one task":
        task = task_instance(DeliverFilesOperator, time, files=str(path), **DELIVERY)
    else:
        draft = create.run()
        attach = task_instance(AttachFilesOperator, time, transfer_id=draft, files=str(path))
        attach.task_id, attach.upstream = "attach", {"create": create}
        create.task_id = "create"
        attach.run()
        task = task_instance(SendTransferOperator, time, transfer_id=draft)
        task.upstream = {"create": create, "attach": attach}
    sandbox.plan_faults({"kind": "field_value", "field": field, "json": value, "method": "POST", "path": "*/send"})
    with pytest.raises(Exception, match="was sent, but"):
        task.run()
