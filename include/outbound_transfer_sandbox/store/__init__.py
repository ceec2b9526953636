"""Storage: a SQLite database for records and a directory for the bytes of files."""
