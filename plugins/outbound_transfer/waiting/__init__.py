"""Waiting for transfers in a triggerer: one poll for all waits of a connection."""
