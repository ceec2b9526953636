SELECT CAST({{ dbt.dateadd('day', 'generated_number - 1', "CAST('2020-01-01' AS date)") }} AS date) AS day
FROM (
    {{ dbt.generate_series(14610) }}
) AS numbers
