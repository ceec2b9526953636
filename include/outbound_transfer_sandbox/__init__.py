"""A local stand-in of the Outbound Transfer Service, as service.md describes it.

``outbound-transfer-sandbox`` runs it as a process; ``outbound_transfer_sandbox.testing.running_sandbox`` runs it inside
a test. It shares no code with the provider: each reads service.md for itself.
"""
