"""HTTP: reads requests, calls the service, renders answers. Decides nothing."""
