"""Health check of a Spark process in this container: ``spark_check.py PORT [FIELD VALUE]``.

Exit status 0 if the port accepts connections and, with FIELD and VALUE, ``/json/`` has that value. Uses
sockets only, because it runs every few seconds.
"""

import json
import socket
import sys

SECONDS = 4


def main(port: str, *wanted: str) -> None:
    """Exit with an error unless the process is healthy."""
    try:
        with socket.create_connection(("127.0.0.1", int(port)), SECONDS) as connection:
            if wanted and field(connection, wanted[0]) != wanted[1]:
                sys.exit(f"{wanted[0]} is not {wanted[1]}")
    except (OSError, ValueError) as e:
        sys.exit(str(e))


def field(connection: socket.socket, name: str) -> str:
    """A field of the status of a master or worker, as text."""
    connection.sendall(b"GET /json/ HTTP/1.0\r\n\r\n")
    answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return str(json.loads(answer.partition(b"\r\n\r\n")[2]).get(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
