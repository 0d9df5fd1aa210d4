"""The first line of a failed script's error is what its author looks for, wherever it was printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrofill.driver.script_error import explained, of_program

WARN = "26/11/28 10:00:01 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform..."
INFO = "26/11/28 10:00:09 INFO ShutdownHookManager: Shutdown hook called"
ERROR = "26/11/28 10:00:05 ERROR Executor: Exception in task 0.0 in stage 0.0 (TID 0)"
BROADCAST = "26/11/28 10:00:05 ERROR Utils: Uncaught exception in thread driver-heartbeater"
LOGGED = "ERROR:root:could not load"
JSON = '{"ts":"2026-11-28T10:00:01.000Z","level":"WARN","msg":"slow","logger":"x"}'
OF_PYTHON = "2026-11-28 10:00:02,123 INFO job: reading 3 files"
START = [
    "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
    WARN,
    'Setting default log level to "WARN".',
    "To adjust logging level use sc.setLogLevel(newLevel).",
    JSON,
    OF_PYTHON,
    "processed 3 files",
    "[Stage 0:>                                                          (0 + 2) / 2]",
]
TRACE = [
    "Traceback (most recent call last):",
    '  File "/jobs/job.py", line 7, in <module>',
    "    main()",
    "    ~~~~^^",
    '  File "/venv/lib/python3.11/site-packages/pyspark/sql/session.py", line 99, in sql',
    "    raise it",
    "KeyError: 'amount'",
]
JAVA = [
    "py4j.protocol.Py4JJavaError: An error occurred while calling o45.parquet.",
    ": org.apache.spark.SparkException: Job aborted.",
    "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.jobAborted(QueryExecutionErrors.scala:638)",
    "\tat java.base/java.lang.Thread.run(Thread.java:840)",
    "Caused by: java.io.IOException: No space left on device",
    "\t... 20 more",
]
WORKER = [
    ERROR,
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):",
    '  File "/jobs/job.py", line 4, in price',
    "    return 1 / n",
    "ZeroDivisionError: division by zero",
    "",
    "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:572)",
]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([*START, *TRACE, INFO], "KeyError: 'amount'"),
        ([*TRACE, *START[:5]], "KeyError: 'amount'"),
        (
            [*START, *TRACE[:-1], "shop.errors.NoRows: nothing for 2013-01-01", "  look at the source", INFO],
            "shop.errors.NoRows: ",
        ),
        (
            [
                *START,
                "ValueError: first",
                "",
                "During handling of the above exception, another exception occurred:",
                "",
                *TRACE,
            ],
            "KeyError",
        ),
        (
            [*START, *TRACE[:-1], *JAVA, INFO],
            f"{JAVA[0][:-1]}: org.apache.spark.SparkException: Job aborted.",
        ),
        ([*START, *WORKER, INFO], "ZeroDivisionError: division by zero"),
        ([*START, *WORKER, WARN, *TRACE, INFO], "KeyError: 'amount'"),
        ([*START, *WORKER, BROADCAST, "no rows for 2013-01-01", INFO], "no rows for 2013-01-01"),
        ([*START, *TRACE, WARN, "no rows for 2013-01-01", INFO], "no rows for 2013-01-01"),
        ([*START, "no rows for 2013-01-01", INFO, BROADCAST], "no rows for 2013-01-01"),
        (
            ["usage: job.py [-h] --day DAY", "job.py: error: the following arguments are required: --day"],
            "job.py: error: the ",
        ),
        ([*START, LOGGED, *TRACE, INFO], "KeyError: 'amount'"),
        ([WARN, "Error: Failed to load class shop.Main.", INFO], "Error: Failed to load class shop.Main."),
        (
            [WARN, 'Exception in thread "main" java.io.IOException: no such host', *JAVA[2:], INFO],
            'Exception in thread "main" java.io.',
        ),
        (["python3: can't open file '/jobs/jop.py': [Errno 2] No such file or directory"], "python3: can't open file"),
        (
            ['  File "/jobs/job.py", line 3', "    def main(", "            ^", "SyntaxError: '(' was never closed"],
            "SyntaxError: '('",
        ),
        ([WARN, BROADCAST, INFO], BROADCAST),
        ([WARN, INFO], "it said nothing"),
        ([], "it said nothing"),
    ],
)
def test_the_first_line_is_the_cause_and_logs_come_last(lines: list[str], cause: str) -> None:
    first, *others = explained(lines).splitlines()
    assert first.startswith(cause)
    logs = [line in (WARN, INFO, JSON, OF_PYTHON, BROADCAST, ERROR, LOGGED) for line in others]
    assert logs == sorted(logs)
    assert not any(line.startswith("\tat ") for line in others)


def test_the_frames_are_the_users() -> None:
    assert explained(TRACE).splitlines()[1:] == TRACE[:4]
    only_of_libraries = [TRACE[0], *TRACE[4:]]
    assert explained(only_of_libraries).splitlines()[1:] == only_of_libraries[:-1]


SCRIPTS = {
    "import sys; sys.exit('no rows')": "no rows",
    "raise ValueError('two\\nlines')": "ValueError: two",
    "assert 1 == 2, 'they differ'": "AssertionError: they differ",
    "import nothing_of_that_name": "ModuleNotFoundError: No module named 'nothing_of_that_name'",
    "import logging\ntry: {}[3]\nexcept KeyError: logging.exception('it failed')\nraise SystemExit(4)": "KeyError: 3",
    "def f(:": "SyntaxError: invalid syntax",
    "try:\n    {}['a']\nexcept KeyError as e:\n    raise RuntimeError('no a') from e": "RuntimeError: no a",
    "raise ExceptionGroup('both', [ValueError('one'), KeyError('two')])": "ExceptionGroup: both (2 sub-exceptions)",
    "print('done', flush=True); import os; os._exit(3)": "done",
}


# As a script's standard input is: open for writing only.
NO_INPUT_SAID = "a task has no standard input: pass what it reads as an argument or in a file"
CLOSED = f"OSError: [Errno 9] Bad file descriptor: {NO_INPUT_SAID}"
NO_INPUT = {
    "input('Really? ')": CLOSED,
    "answer = input()": CLOSED,
    "import sys; sys.stdin.read()": CLOSED,
    "import sys\nfor line in sys.stdin: print(line)": CLOSED,
    "import json, sys; json.load(sys.stdin.buffer)": CLOSED,
    "import fileinput\nfor line in fileinput.input(): print(line)": CLOSED,
    "import click; click.confirm('Really?', abort=True)": CLOSED,
    "from rich.prompt import Prompt; Prompt.ask('Which day?')": CLOSED,
    "import getpass; getpass.getpass()": CLOSED,
    "import os; os.read(0, 10)": CLOSED,
    "open(0).read()": CLOSED,
    "import subprocess; subprocess.run(['cat'], check=True)": (
        "subprocess.CalledProcessError: Command '['cat']' returned non-zero exit status 1: cat: -: Bad file descriptor"
    ),
    "import os; os.read(99, 10)": "OSError: [Errno 9] Bad file descriptor",
}


@pytest.mark.parametrize("text", [*SCRIPTS, *NO_INPUT])
def test_of_real_scripts(text: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(text)
    with Path(os.devnull).open("w") as closed:
        done = subprocess.run(
            [sys.executable, "-u", script],
            stdin=closed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            check=False,
        )
    assert done.returncode != 0
    said = explained([WARN, *done.stdout.splitlines(), INFO])
    assert said.splitlines()[0] == {**SCRIPTS, **NO_INPUT}[text]


def test_a_program_that_asks_says_that_nobody_answers(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("answer = input('Really? ')")
    done = subprocess.run(
        [sys.executable, script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    said = of_program((done.stdout + done.stderr).splitlines())
    assert said.splitlines()[0] == f"EOFError: EOF when reading a line: {NO_INPUT_SAID}"


DBT = [
    "10:15:01  Running with dbt=1.9.0",
    "10:15:02  1 of 1 ERROR creating sql table model main.m ............... [ERROR in 0.05s]",
    "10:15:02  Completed with 1 error, 0 partial successes, and 0 warnings:",
    "10:15:02",
    "10:15:02    Database Error in model m (models/m.sql)",
    '  column "amount" does not exist',
    "10:15:02  Done. PASS=0 WARN=0 ERROR=1 SKIP=0 TOTAL=1",
]


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (DBT, '10:15:02    Database Error in model m (models/m.sql): column "amount" does not exist'),
        (
            ['psql:x.sql:3: ERROR:  relation "t" does not exist', "LINE 1: SELECT * FROM t", "                      ^"],
            'psql:x.sql:3: ERROR:  relation "t" does not exist',
        ),
        (["Cloning into 'x'...", "fatal: repository 'x' does not exist"], "fatal: repository 'x' does not exist"),
        (["begins", "./load.sh: line 3: dbt: command not found"], "./load.sh: line 3: dbt: command not found"),
        (
            ["Encountered an error:", "Runtime Error", "  Could not find profile named 'x'"],
            "Runtime Error: Could not find profile named 'x'",
        ),
        (["10 rows, 0 errors", "no rows for 2013-01-01"], "no rows for 2013-01-01"),
        (TRACE, "KeyError: 'amount'"),
        ([], "it said nothing"),
        (["", "  "], "it said nothing"),
    ],
)
def test_the_first_line_of_a_failed_program_names_its_error(lines: list[str], first: str) -> None:
    said = of_program(lines).splitlines()
    assert said[0] == first
    if lines and lines is not TRACE:
        assert not [line for line in lines if line.strip() and line.strip() not in "\n".join(said)]
