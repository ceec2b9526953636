"""The formats of results, one module each."""
