{{ config(enabled=var('using_transfers', true)) }}

SELECT
    r.account,
    r.transfer_id,
    r.position,
    r.email,
    r.name,
    t.sent_at,
    {{ outbound_transfer.utc_date('t.sent_at') }} AS sent_on,
    r.picked_up_at,
    {{ outbound_transfer.seconds_between('t.sent_at', 'r.picked_up_at') }} AS seconds_to_pickup
FROM {{ ref('stg_outbound_transfer__recipients') }} AS r
INNER JOIN {{ ref('stg_outbound_transfer__transfers') }} AS t ON t.account = r.account AND t.transfer_id = r.transfer_id
