"""The differences between versions of Airflow, all of them: names, lookups, shared polls, state that outlives a try."""
