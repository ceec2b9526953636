{{ config(enabled=var('using_transfers', true)) }}

SELECT
    {{ outbound_transfer.column('account') }},
    {{ outbound_transfer.column('transfer_id') }},
    {{ outbound_transfer.column('position') }},
    {{ outbound_transfer.column('email') }},
    {{ outbound_transfer.column('name') }},
    {{ outbound_transfer.time_column('picked_up_at') }}
FROM {{ source('outbound_transfer', 'recipients') }}
