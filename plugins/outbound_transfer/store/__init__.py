"""What the provider stores in a SQL database, through SQLAlchemy Core over an Airflow connection."""
