{{ config(enabled=var('using_transfers', true)) }}

SELECT transfers.sent AS transfers, days.sent AS in_funnel
FROM (SELECT count(*) AS sent FROM {{ ref('stg_outbound_transfer__transfers') }}) AS transfers
CROSS JOIN (SELECT coalesce(sum(sent), 0) AS sent FROM {{ ref('outbound_transfer__funnel_by_day') }}) AS days
WHERE transfers.sent <> days.sent
