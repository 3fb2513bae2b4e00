"""Read and write addresses: ``host:port``, ``[::1]:port``, and lists ``a:9876;b:9876``.

Host names may contain letters, digits, dots, hyphens and underscores (compose writes underscores).
An IPv6 address needs brackets, which separate its last group from the port.
"""

import re

_HOST = re.compile(r"[A-Za-z0-9._-]+")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?")


def parse_address(text: str) -> tuple[str, int]:
    """Split ``host:port``; the host is returned without brackets.

    Raises: ValueError with cause and fix.
    """
    stripped = text.strip()
    host, colon, port_text = stripped.rpartition(":")
    if colon and not host:
        raise ValueError(
            f"address {text!r} has no host; write host:port, for example 127.0.0.1{stripped}"
        )
    if not colon or stripped.endswith("]"):
        raise ValueError(
            f"address {text!r} has no port; write host:port, for example 127.0.0.1:9876"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host or _IPV6.fullmatch(host) is None:
            raise ValueError(
                f"address {text!r} has no IPv6 address between its brackets; write [::1]:9876"
            )
    elif ":" in host:
        raise ValueError(
            f"address {text!r} is ambiguous; write an IPv6 address in brackets, for example"
            " [::1]:9876"
        )
    elif _HOST.fullmatch(host) is None:
        raise ValueError(
            f"address {text!r} has no valid host name; write host:port, for example 127.0.0.1:9876"
        )
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ValueError(
            f"address {text!r} has port {port_text!r}; a port is a number from 0 to 65535"
        )
    return host, int(port_text)


def bare_host(host: str) -> str:
    """Return a host without the brackets of an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def format_address(host: str, port: int) -> str:
    """Return the text that ``parse_address`` reads; an IPv6 address may already have brackets."""
    host = bare_host(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain_host(host: str) -> str:
    """Return the IPv4 address of an IPv4 peer of an IPv6 socket; any other host unchanged."""
    return host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host


def parse_address_list(text: str) -> list[str]:
    """Split ``a:9876;b:9876`` (also at commas and blanks) into addresses, without repeats.

    Raises: ValueError with cause and fix.
    """
    parts = re.split(r"[;,\s]+", text.strip())
    return list(dict.fromkeys(format_address(*parse_address(part)) for part in parts if part))
