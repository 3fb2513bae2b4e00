#!/opt/triomq/bin/python -ISE
"""Ask a service of this machine for its state: ``probe [ready|live|status|metrics] [PORT]``. The
exit code is 0 if the answer is 200, otherwise 1.

Health checks run it every few seconds in every container, so it imports only ``socket``, and takes
about 10 ms.
"""

import socket
import sys

SECONDS = 3
PORT = 9898


def main(what: str = "ready", port: str = str(PORT)) -> int:
    """Print the body of the answer and return the exit code."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", int(port)), timeout=SECONDS) as connection:
            connection.sendall(
                b"GET /%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % what.encode()
            )
            while chunk := connection.recv(65536):
                answer += chunk
    except OSError as error:
        print(f"127.0.0.1:{port}: {error}")
        return 1
    head, _, body = answer.partition(b"\r\n\r\n")
    print(body.decode(errors="replace"), end="")
    return 0 if head.split(b" ")[1:2] == [b"200"] else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
