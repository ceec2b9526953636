"""``outbound-transfer-warehouse-check``: ingestions that are killed and that race, on the user's own database."""
