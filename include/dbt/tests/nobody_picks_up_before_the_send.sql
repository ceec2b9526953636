{{ config(enabled=var('using_transfers', true)) }}

SELECT account, transfer_id, position, sent_at, picked_up_at
FROM {{ ref('outbound_transfer__time_to_pickup') }}
WHERE picked_up_at < sent_at
