"""The response to the send is compared with what was meant; a difference is an error (docs/guarantees.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbound_transfer.operators.draft import AttachFilesOperator, CreateTransferOperator, SendTransferOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from support.tasks import SimulatedClock, task_instance

DELIVERY = {"subject": "R", "message": "Hello", "recipients": [{"email": "ann@example.com", "name": "Ann"}]}


@pytest.mark.parametrize("kind", ["one task", "three tasks"])
@pytest.mark.parametrize(
    ("field", "value", "difference"),
    [
        ("subject", '"Other"', "to other recipients or with another subject"),
        ("id", '"tr_other"', "the service's response is of tr_other"),
        ("files", "[]", r"it holds \[\], and \['a.csv'\] was meant"),
        ("files", '[{"id": "fl_other", "name": "other.csv", "size": 9}]', r"it holds \['other.csv'\]"),
        (
            "files",
            '[{"id": "fl_other", "name": "a.csv", "size": 9}, {"id": "fl_1", "name": "a.csv", "size": 1}]',
            r"it holds \['a.csv', 'a.csv'\]",
        ),
        ("recipients", '[{"email": "eve@example.com", "name": "Eve", "picked_up_at": null}]', "to other recipients"),
    ],
)
def test_a_response_to_the_send_that_differs_is_an_error(
    connection: str, sandbox: Any, tmp_path: Path, kind: str, field: str, value: str, difference: str
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
    with pytest.raises(Exception, match=f"was sent, but .*{difference}"):
        task.run()
