"""The event feed in an Iceberg table: a page is one snapshot with its rows and its cursor, a property of the table."""
