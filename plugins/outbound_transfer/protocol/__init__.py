"""The service's protocol, pure: calls, models, errors and flows.

Nothing here knows Airflow, an HTTP library, a clock or sleep; ``tests/unit/test_architecture.py`` checks it.
"""
