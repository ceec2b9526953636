"""The service's HTTP interfaces: read requests, call the services, return responses."""
