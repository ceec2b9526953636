"""The service's words and pure rules: resources, errors, clock, limits. Imports no other package of the sandbox."""
