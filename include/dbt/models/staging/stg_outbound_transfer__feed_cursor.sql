{{ config(enabled=not var('outbound_transfer_lake', false)) }}

SELECT
    {{ outbound_transfer.column('account') }},
    {{ outbound_transfer.column('cursor') }},
    {{ outbound_transfer.time_column('updated_at') }}
FROM {{ source('outbound_transfer', 'feed_cursor') }}
