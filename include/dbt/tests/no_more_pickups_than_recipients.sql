{{ config(enabled=var('using_transfers', true)) }}

SELECT account, transfer_id, recipient_count, picked_up_count
FROM {{ ref('stg_outbound_transfer__transfers') }}
WHERE picked_up_count > recipient_count
