"""``spark_check.py PORT [FIELD VALUE]``: whether a part of Spark in this container works, by the exit status; for its health check.

Somebody must listen on the port; with FIELD and VALUE it is asked for ``/json/``, where the field must have that value. Kept small,
as it runs every few seconds: sockets only.
"""

import json
import socket
import sys

SECONDS = 4


def main(port: str, *wanted: str) -> None:
    """Ask once."""
    try:
        with socket.create_connection(("127.0.0.1", int(port)), SECONDS) as connection:
            if wanted and field(connection, wanted[0]) != wanted[1]:
                sys.exit(f"{wanted[0]} is not {wanted[1]}")
    except (OSError, ValueError) as e:
        sys.exit(str(e))


def field(connection: socket.socket, name: str) -> str:
    """A field of what a master or worker says of itself."""
    connection.sendall(b"GET /json/ HTTP/1.0\r\n\r\n")
    answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return str(json.loads(answer.partition(b"\r\n\r\n")[2]).get(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
