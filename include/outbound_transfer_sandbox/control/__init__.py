"""The control API under `/_sandbox`: what tests may do and no client of the service can."""
