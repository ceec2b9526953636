"""One shared poll for all waiters and watchers of a connection."""
