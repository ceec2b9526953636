"""The tables that analysts query, in PostgreSQL, MySQL, MariaDB, SQLite and DuckDB.

``tables`` defines them, ``dialects`` has what differs between databases, ``database`` opens transactions, ``rows``
converts pages to rows, and ``events``, ``transfers`` and ``deliveries`` store what each of them is named for.
"""
