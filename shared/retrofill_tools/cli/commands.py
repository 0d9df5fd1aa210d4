"""Names and first sentences of all commands: what the help and the shell's completion list.

They stand here, so that a list of commands imports none: what a command imports takes longer than printing the list.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Listed:
    """A command or a group of them, and where it is in this package: ``module:name``."""

    place: str
    about: str
    commands: dict[str, str] = field(default_factory=dict)


# In the order of the help.
COMMANDS = {
    "up": Listed("stack:up", "Start the embedded stack: Kafka, Postgres, Spark and the services."),
    "down": Listed("stack:down", "Stop the embedded stack. Its data is kept."),
    "status": Listed("stack:status", "Show the state of all parts, their addresses, and the seats of run-starters."),
    "logs": Listed("stack:logs", "Show the log of a part. Those of attempts: retrofill runs logs."),
    "service": Listed("stack:service", "Run one more replica of a service in the foreground."),
    "console": Listed("stack:console", "Serve the web page in the foreground, also for an installation elsewhere."),
    "hosts": Listed("hosts:list_hosts", "List run-starters with their seats, and why drivers do not start."),
    "init": Listed(
        "installation:init", "Create the schema and roles in Postgres, and topics, users and ACLs in Kafka."
    ),
    "recover": Listed(
        "installation:recover", "Repair the state after a Postgres restore or failover that may have lost commits."
    ),
    "purge": Listed("purge:purge", "Delete backfills that ended long ago, except runs that later backfills depend on."),
    "config": Listed("installation:config", "Show all settings, with secrets masked."),
    "watch": Listed(
        "watching:watch_all", "Show active backfills, live attempts and hosts, live on a terminal; Ctrl-C ends it."
    ),
    "completion": Listed(
        "options:completion", "Print a script that completes commands, options, backfills and pipelines."
    ),
    "pipelines": Listed(
        "pipelines:group",
        "Apply, list and show pipelines.",
        {
            "apply": "Apply the pipelines of a Python file or module.",
            "list": "List the applied pipelines.",
            "show": "Show one pipeline: its schedule, tasks, deadlines and code.",
        },
    ),
    "places": Listed(
        "places:group",
        "Give up directories that belong to intervals.",
        {
            "release": "Let other intervals and pipelines publish to directories. What is published stays as it is.",
        },
    ),
    "pools": Listed(
        "hosts:pools",
        "Show pools of drivers.",
        {
            "list": "List the pools that are served or used, with hosts, seats and versions.",
        },
    ),
    "backfill": Listed(
        "backfills:group",
        "Create, watch, change and cancel backfills.",
        {
            "create": "Request a backfill and wait for the reply.",
            "dry-run": "Show the runs that a request would create now. Publishes and writes nothing.",
            "list": "List backfills, newest first.",
            "show": "Show one backfill: counts, speed, failed runs with their errors, skipped intervals.",
            "watch": "Show progress until the backfill ends; exit status 1 unless it succeeded, 3 if it is in review.",
            "pause": "Start no new runs; runs in progress finish.",
            "resume": "Resume a paused backfill; one whose budget is used up needs another one (--budget none: no limits).",
            "diff": "Compare what a backfill in review has staged with what is published; largest changes first.",
            "publish": "Publish what a backfill in review has staged. What somebody has changed since is reviewed again.",
            "discard": "Cancel a backfill in review: what it has staged is not published.",
            "cancel": "Cancel all runs that have not ended.",
            "change": "Change an active backfill. Whatever is not given stays as it is.",
            "retry": "Retry all failed runs. Of an ended backfill, request its failed and cancelled ones again.",
            "undo": "Restore what the runs of an ended backfill replaced, by a new backfill.",
        },
    ),
    "runs": Listed(
        "runs:group",
        "List, show, retry and cancel single runs, and read their logs.",
        {
            "list": "List the runs of a backfill, in the order of their intervals.",
            "cancel": "Cancel some runs, as many as are named, unless they have ended. The backfill's other runs go on.",
            "retry": "Run failed runs of an active backfill again: all that are named, or none.",
            "show": "Show one run: its state, attempts, tasks and error.",
            "logs": "Print the log of an attempt, during and after it. Of a run, that of its last attempt.",
        },
    ),
    "intervals": Listed(
        "runs:intervals",
        "Show what became of a data interval.",
        {
            "show": "Show who processed an interval when, with which code, and what that published.",
        },
    ),
    "deadlines": Listed(
        "deadlines:group",
        "List and show deadlines, watch misses.",
        {
            "list": "List deadlines, latest first.",
            "show": "Show one deadline: what it is for, when it is due, and its outcome.",
            "watch": "Show misses, digests and recoveries as they are published, until Ctrl-C.",
        },
    ),
    "callbacks": Listed(
        "callbacks:group",
        "List, show and replay callbacks.",
        {
            "list": "List callbacks, newest first.",
            "show": "Show one callback: its target, arguments and outcome.",
            "replay": "Call failed callbacks again, starting at their first try.",
        },
    ),
    "dead-letters": Listed(
        "dead_letters:group",
        "List, replay and drop messages that could not be handled.",
        {
            "list": "List dead letters, newest first.",
            "replay": "Republish a dead letter unchanged to its original topic, and wait for the reply, if any.",
            "drop": "Delete dead letters: P:O and all before it in its partition, or all.",
        },
    ),
}
