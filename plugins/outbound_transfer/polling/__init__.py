"""One poll for all who wait on one connection."""
