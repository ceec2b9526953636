"""The bytes of a delivery: its sources, their content, and their uploads to a draft."""
