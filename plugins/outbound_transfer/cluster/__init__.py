"""What the processes of a cluster that use one key share, in the database of the states or the ledger."""
