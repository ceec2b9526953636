"""The differences between versions of Airflow, and its private names, all of them."""
