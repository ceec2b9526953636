"""The service's two APIs: one synchronous client, its models, events and errors. It knows no Airflow."""
