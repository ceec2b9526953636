"""Notifiers for callbacks and deadline alerts that know the transfer, who is outstanding, and why."""
