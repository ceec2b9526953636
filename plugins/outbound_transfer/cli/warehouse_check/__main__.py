"""``python -m outbound_transfer.cli.warehouse_check``."""

from outbound_transfer.cli.warehouse_check.command import main

main()
