"""Planned faults: errors, delays and broken connections that a test asks for. Knows nothing of the service."""
