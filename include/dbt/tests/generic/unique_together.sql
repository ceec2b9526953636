{% test unique_together(model, columns) %}
SELECT {{ columns | join(', ') }}, count(*) AS occurrences
FROM {{ model }}
GROUP BY {{ columns | join(', ') }}
HAVING count(*) > 1
{% endtest %}
