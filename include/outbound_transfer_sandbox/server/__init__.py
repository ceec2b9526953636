"""The ASGI application and the HTTP server that runs it."""
