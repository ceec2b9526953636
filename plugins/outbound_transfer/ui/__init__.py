"""The page "Outbound transfers" in Airflow's UI. It only reads."""
