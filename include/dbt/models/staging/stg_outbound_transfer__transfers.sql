{{ config(enabled=var('using_transfers', true)) }}

SELECT
    {{ outbound_transfer.column('account') }},
    {{ outbound_transfer.column('transfer_id') }},
    {{ outbound_transfer.column('conn_id') }},
    {{ outbound_transfer.column('status') }},
    {{ outbound_transfer.column('subject') }},
    {{ outbound_transfer.time_column('sent_at') }},
    {{ outbound_transfer.time_column('expires_at') }},
    {{ outbound_transfer.column('recipient_count') }},
    {{ outbound_transfer.column('picked_up_count') }},
    {{ outbound_transfer.time_column('first_seen_at') }},
    {{ outbound_transfer.time_column('seen_at') }}
FROM {{ source('outbound_transfer', 'transfers') }}
