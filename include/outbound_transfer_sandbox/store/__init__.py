"""What is kept: one SQLite database for records and one directory for the bytes of files."""
