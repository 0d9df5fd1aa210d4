"""``python -m benchmarks [NAME]``: run one benchmark, or all (``make bench ONLY=NAME``)."""

from __future__ import annotations

import sys

from benchmarks import deadlines, planning

BENCHMARKS = {"planning": planning.main, "deadlines": deadlines.main}


def main(names: list[str]) -> int:
    """Run what is named."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.stderr.write(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}\n")
        return 2
    return max(BENCHMARKS[name]() for name in names or BENCHMARKS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
