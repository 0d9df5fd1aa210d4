"""Finds in the output of a failed script what its author would look for."""

from __future__ import annotations

import re
from typing import Sequence

# The first line of a record in a log: of log4j as Spark ships it or as JSON, of java.util.logging, of Python's logging.
_RECORD = re.compile(
    r"\s*\[?\d{2,4}[-/.]\d{2}[-/.]\d{2}[T ]\d{2}:\d{2}:\d{2}|(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL):"
    r'|\{"(?:ts|time|timestamp|@timestamp)"'
)
_SEVERE = re.compile(r".{0,120}?\b(?:ERROR|FATAL|CRITICAL|SEVERE)\b")
_NOISE = re.compile(
    r"\s*$|\s*\[Stage \d+:|Using Spark's default|Setting default log level|To adjust logging level|(?:NOTE: )?Picked up "
    r"|WARNING: Using incubator|[\s|+]*-+[-\d ]*$|\s+at \S+\(.*\)\s*$|\s*\.\.\. \d+ (?:more|common frames omitted)\s*$"
)
# What follows the first line of a record: the stack trace of an error, without its frames.
_OF_RECORD = re.compile(r"\s(?!\s*File )|Caused by: |[\w.$]+(?:Exception|Error)\b")
_TRACEBACK = "Traceback (most recent call last):"
# Before the lines of a group of errors.
_OF_GROUP = re.compile(r"\s*[|+] ")
_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line \d+')
_NOT_THE_USERS = re.compile(
    r"[/\\](?:site-packages|dist-packages|pyspark\.zip|py4j-[^/\\]*\.zip)[/\\]|[/\\]lib[/\\]python3|^<frozen "
    r"|[/\\]with_arguments\.py$"
)
# What spark-submit and Java say of what ended them.
_OF_JAVA = re.compile(r'Exception in thread "[^"]*" |Error: ')
# What one gets that reads its standard input, closed or empty, and what in its frames shows that it did.
_NOTHING_READ = re.compile(r"OSError: \[Errno 9\] Bad file descriptor$|EOFError: EOF when reading a line$")
_READS_INPUT = re.compile(r"\b(?:raw_)?input\(|\bstdin\b|fileinput|getpass|\b(?:prompt|confirm)|\b(?:read|open)\(0\b")
_NO_INPUT = "a task has no standard input: pass what it reads as an argument or in a file"
# The error of a program that the script called; the program itself said why.
_OF_PROGRAM = re.compile(r"(?:subprocess\.)?CalledProcessError: Command .* returned non-zero exit status \d+\.$")
_CHAINED = ("exception occurred:", "exception was the direct cause of the following exception:")
MAX_LINES = 20
NOTHING = "it said nothing"
# As programs say it: psql:x.sql:3: ERROR: …, fatal: …, 10:15:02  Database Error in model m
_ERROR = re.compile(
    r"\W*(?:\d\d:\d\d:\d\d\S*\s+)?(?:[\w./():-]+[ ]+){0,3}(?:error|fatal|exception|panic)\b(?! and |s\b)", re.IGNORECASE
)


def of_program(lines: Sequence[str]) -> str:
    """As ``explained``, of any program: first the last line that names an error, or else the last one."""
    texts = [line.rstrip() for line in lines if line.strip()]
    if any(line.endswith(_TRACEBACK) or _OF_JAVA.match(line) for line in texts):
        return explained(lines)
    last = texts[-MAX_LINES:]
    at = max((n for n, line in enumerate(last) if _ERROR.match(line)), default=len(last) - 1)
    first = last[at].strip() if last else NOTHING
    if at + 1 < len(last) and last[at + 1][0].isspace():
        # What it goes on with is the cause.
        first = f"{first.rstrip(':')}: {last[at + 1].strip()}"
    return "\n".join([first, *last[:at], *last[at + 1 :]])


def explained(lines: Sequence[str]) -> str:
    """The cause in the first line, then what was said with it, then the last lines of logs.

    ``lines``: the last ones of the output. The cause is the error of the last Python traceback, unless something else was
    said after that, as the text of ``sys.exit``; without a traceback, what Java said of its end.
    """
    said, logged, severe = _apart(lines)
    texts = list(said.values())
    begins = max((n for n, line in enumerate(texts) if line.rstrip().endswith(_TRACEBACK)), default=None)
    found = _traced(list(said), texts, begins) if begins is not None else []
    if not found:
        of_java = [n for n, line in enumerate(texts) if _OF_JAVA.match(line)]
        found = texts[of_java[0] :] if of_java else [*texts[-1:], *texts[-MAX_LINES:-1]]
    if not found:
        found = severe[-1:]
    return "\n".join([found[0].strip() if found else NOTHING, *found[1 : 2 * MAX_LINES], *logged[-MAX_LINES // 2 :]])


def _apart(lines: Sequence[str]) -> tuple[dict[int, str], list[str], list[str]]:
    """What was said outside of logs, by number of the line; the lines of logs; and those of errors among these."""
    said: dict[int, str] = {}
    logged: list[str] = []
    severe: list[str] = []
    in_record = False
    kept = (_OF_GROUP.sub("", line, count=1) for line in lines if not _NOISE.match(line))
    for number, line in enumerate(kept):
        traceback = line.rstrip().endswith(_TRACEBACK)
        in_record = bool(_RECORD.match(line)) or (in_record and bool(_OF_RECORD.match(line)))
        if traceback and not (_RECORD.match(line) and not _SEVERE.match(line)):
            # Of an error: what follows is as good as said.
            in_record = False
        if in_record:
            logged.append(line)
            if _RECORD.match(line) and _SEVERE.match(line):
                severe.append(line)
        else:
            said[number] = line
    return said, logged, severe


def _traced(numbers: Sequence[int], texts: Sequence[str], begins: int) -> list[str]:
    """The error of the traceback that begins there, and its frames; or before these, what was said apart from it later."""
    end = next((n for n in range(begins + 1, len(texts)) if not texts[n][0].isspace()), len(texts))
    over = next((n for n in range(end, len(texts)) if numbers[n] != numbers[n - 1] + 1), len(texts))
    frames = _users(texts[begins + 1 : end])
    error = list(texts[end:over])
    if len(error) > 1 and error[1].startswith(": "):
        # Py4J's own error says only that one occurred.
        error[:2] = [f"{error[0].rstrip('.')}{error[1]}"]
    before = texts[begins - 1].strip() if begins else ""
    if error and _OF_PROGRAM.match(error[0]) and before and not before.endswith(_CHAINED):
        error[0] = f"{error[0].rstrip('.')}: {before}"
    if error and _NOTHING_READ.match(error[0]) and any(map(_READS_INPUT.search, texts[begins + 1 : end])):
        error[0] = f"{error[0]}: {_NO_INPUT}"
    traced = [*error[:MAX_LINES], *([_TRACEBACK, *frames] if frames else [])]
    return [*reversed(texts[over:][-1:]), *texts[over:-1], *traced]


def _users(lines: Sequence[str]) -> list[str]:
    """The lines of the user's frames, or all if none is."""
    frames: list[tuple[bool, list[str]]] = []
    for line in lines:
        found = _FRAME.match(line)
        if found:
            frames.append((not _NOT_THE_USERS.search(found["file"]), [line]))
        elif frames:
            frames[-1][1].append(line)
    users = [text for is_users, text in frames if is_users] or [text for _, text in frames]
    return [line for text in users for line in text]
