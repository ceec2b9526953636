"""Arguments that are spelt wrong: `make lint` checks that the type checker reports each; nothing runs this."""

from outbound_transfer.operators.draft import AttachFilesOperator
from outbound_transfer.operators.transfer import DeliverFilesOperator
from outbound_transfer.sensors.transfer import TransferSensor

AttachFilesOperator(task_id="attach", transfer_id="t", file="a.csv")  # type: ignore[call-arg]
DeliverFilesOperator(task_id="deliver", files="a.csv", subject="S", recipient="ann@example.com", retries=3)  # type: ignore[call-arg]
TransferSensor(task_id="wait", transfer_id="t", on_expird="skip", mode="reschedule")  # type: ignore[call-arg]
