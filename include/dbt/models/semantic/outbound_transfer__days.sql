{%- set number = 'CAST(generated_number - 1 AS ' ~ dbt.type_int() ~ ')' %}
SELECT {{ outbound_transfer.date_after("CAST('2020-01-01' AS date)", number) }} AS day
FROM (
    {{ dbt.generate_series(14610) }}
) AS numbers
