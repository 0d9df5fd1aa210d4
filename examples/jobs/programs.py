"""Jobs that know nothing of Retrofill: scripts with options, of a packaged CLI, with settings in a file, and a program.

``conf``: ``orders`` is a directory with a CSV file of each day, ``out`` one for the results, ``url`` the address of a database.
The operator permits ``env.SALESTOOL_*`` and ``spark.jars.packages``, and gives the pool the three secrets.
"""

from __future__ import annotations

from retrofill import Pipeline

DAY = "{interval.start:%Y-%m-%d}"
ORDERS = f"{{conf[orders]}}/{DAY}.csv"


def daily(name: str) -> Pipeline:
    return Pipeline(name, schedule="@daily", start="2026-01-01", max_active_runs=3)


# argparse, and ``sys.exit(main())``.
report = daily("orders_report")
report.submit("report", "report.py", args=["--orders", ORDERS, "--root", f"{{stage:{{conf[out]}}/report/day={DAY}}}"])

# A click CLI in a package beside it, which reads environment variables.
cli = daily("orders_cli")
cli.submit(
    "totals",
    "run_salestool.py",
    args=["totals", "--orders", ORDERS],
    env={"SALESTOOL_OUT": f"{{stage:{{conf[out]}}/cli/day={DAY}}}", "SALESTOOL_TOKEN": "{secret[SALESTOOL_TOKEN]}"},
)

LOGIN = ["--user", "reporter", "--password", "{secret[SHOP_PASSWORD]}"]
# Its password is in no list of processes.
database = daily("orders_database")
database.submit(
    "load",
    "from_database.py",
    args=["--day", DAY, "--out", f"{{stage:{{conf[out]}}/database/day={DAY}}}", "--url", "{conf[url]}", *LOGIN],
    packages=["org.postgresql:postgresql:42.7.7"],
)

# It finds its settings in the working directory.
configured = daily("orders_configured")
configured.submit("load", "configured.py", templates=["job.json"], files=["shops.csv"])

# In the way of dbt: a project, a profile with a password, and any program.
marts = daily("orders_marts")
marts.command(
    "build",
    ["./build_marts.sh", ORDERS, f"{{stage:{{conf[out]}}/marts/day={DAY}}}"],
    templates=["profile.env"],
    files=["models"],
)
