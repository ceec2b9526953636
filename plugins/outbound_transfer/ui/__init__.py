"""The page "Outbound transfers" in Airflow's UI. It reads the warehouse, and changes nothing."""
