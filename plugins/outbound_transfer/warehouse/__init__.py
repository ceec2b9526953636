"""The tables that analysts query, over any connection of an Airflow ``DbApiHook``.

``tables`` says which they are, ``dialects`` how each database spells them, ``database`` opens transactions,
``rows`` turns pages into rows, and ``feed`` lands a page of events together with the cursor.
"""
