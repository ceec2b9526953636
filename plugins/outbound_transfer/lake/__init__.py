"""Destinations without SQL transactions: an Iceberg table, and objects in a folder.

What becomes visible at once is one thing there: a snapshot, an object. So a page's events and rejected lines are rows
of one table (:mod:`.rows`), and the cursor is part of the same snapshot or object.
"""
