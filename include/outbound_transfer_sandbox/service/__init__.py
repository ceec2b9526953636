"""The service's rules (docs/service-api.md), without HTTP."""
