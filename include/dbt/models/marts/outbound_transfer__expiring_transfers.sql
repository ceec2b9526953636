{{ config(enabled=var('using_transfers', true)) }}

SELECT
    account,
    transfer_id,
    subject,
    status,
    expires_at,
    {{ outbound_transfer.seconds_between(outbound_transfer.utc_now(), 'expires_at') }} / 3600.0 AS hours_left,
    recipient_count - picked_up_count AS recipients_outstanding
FROM {{ ref('stg_outbound_transfer__transfers') }}
WHERE status NOT IN ('complete', 'expired', 'canceled', 'deleted')
ORDER BY expires_at
