"""Which bytes a delivery is made of: its sources, their content, and their uploads to a draft."""
