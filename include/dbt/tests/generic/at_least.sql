{% test at_least(model, column_name, minimum) %}
SELECT {{ column_name }}
FROM {{ model }}
WHERE {{ column_name }} < {{ minimum }}
{% endtest %}
