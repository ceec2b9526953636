"""The event feed in an Iceberg table.

A snapshot is what becomes visible at once. So a page's events and rejected lines are rows of one table
(:mod:`.rows`), and the cursor is a property of the table, changed in the same commit.
"""
