"""The delivery ledger: what the tasks tell of their deliveries, kept beside them and never in their way."""
