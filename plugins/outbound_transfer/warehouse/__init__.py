"""The tables that analysts query, in any database that has an Airflow ``DbApiHook``.

``tables`` defines them, ``dialects`` has what differs between databases, ``database`` opens transactions, ``rows``
converts pages to rows, and ``events``, ``transfers`` and ``deliveries`` store what each of them is named for.
"""
