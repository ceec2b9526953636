"""The rules of service.md. Nothing here knows HTTP or SQL."""
