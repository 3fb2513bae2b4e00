"""The option that names the hosts of certificates."""

from triomq.client.admin.arguments import Option


def read_hosts(text: str) -> list[str]:
    hosts = [host.strip().strip("[]") for host in text.replace(";", ",").split(",") if host.strip()]
    if not hosts:
        raise ValueError("name at least one host")
    return hosts


HOSTS = Option(
    "--hosts HOSTS",
    "names and addresses that clients connect to, comma-separated (default: those of this machine)",
    read_hosts,
)
