"""A job in Java, from a jar. To build it in this directory, with the jars of the installed pyspark:

    javac -d classes -cp "$(python -c 'import pyspark; print(pyspark.__path__[0])')/jars/*" java/*.java
    jar --create --file sales.jar -C classes .

``conf``: ``orders`` is a directory with a CSV file of each day, ``out`` one for the results.
"""

from __future__ import annotations

from retrofill import Pipeline

DAY = "{interval.start:%Y-%m-%d}"

java = Pipeline("orders_java", schedule="@daily", start="2026-01-01", max_active_runs=3)
java.submit(
    "totals",
    "sales.jar",
    main_class="org.example.sales.DayTotals",
    args=[f"{{conf[orders]}}/{DAY}.csv", f"{{stage:{{conf[out]}}/java/day={DAY}}}"],
)
