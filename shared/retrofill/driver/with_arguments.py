"""``python with_arguments.py FILE``: runs a script with arguments that no list of processes shows.

FILE: the script and its arguments, as JSON.
"""

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.argv[:] = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    __file__ = sys.argv[0]
    # As for a script that Python starts itself.
    sys.path[0] = str(Path(__file__).parent)
    code = compile(Path(__file__).read_bytes(), __file__, "exec", dont_inherit=True)
    # Here, in ``__main__``: what Spark sends to executors is pickled by value.
    exec(code)
