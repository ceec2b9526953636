"""The service's protocol without I/O: calls, models, errors and flows.

Nothing here imports Airflow or an HTTP library, reads a clock or sleeps; import-linter and
``tests/repository/test_architecture.py`` enforce it.
"""
