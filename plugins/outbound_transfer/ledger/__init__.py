"""The delivery ledger: tasks record their deliveries in a table. A failure of the ledger never fails a task."""
