"""The tests with official clients with access control: ``TEST_ACCESS=true pytest tests/compat``.

Brokers of ours ask for signatures and rights then. Programs that we did not write sign as a user
who has what docs/security.md says that producers and consumers need, and no more; our SDK, and
``mqadmin`` of both kinds, sign as a super user.
"""

from __future__ import annotations

import os
from pathlib import Path

from access_callers import PASSWORD, ROOT, SETTINGS, Caller

from triomq.remoting.client.blocking import BlockingConnection
from triomq.remoting.client.rpc_hooks import Signing
from triomq.remoting.protocol.bodies import auth
from triomq.remoting.protocol.codes import RequestCode as Code
from triomq.remoting.protocol.headers.auth import UserHeader
from triomq.remoting.protocol.signing import Credentials

ON = os.environ.get("TEST_ACCESS") == "true"
BROKER_SETTINGS = {key: SETTINGS[key] for key in SETTINGS if ON and key != "grpcServerPort"}
PROXY_SETTINGS = {
    key: value for key, value in BROKER_SETTINGS.items() if key != "initAuthenticationUser"
}
CREDENTIALS = "accessKey: {}\nsecretKey: {}\n".format(*ROOT)
HOOKS = [Signing(Credentials(access_key=ROOT[0], secret_key=ROOT[1]))] if ON else []
"""Of connections that a test opens itself."""
CLIENT = "client"
LEFT_OUT = {
    "test_signing_with_java": "it brings users of its own",
    "test_users_and_rules_of_java_s_broker": "it brings users of its own",
    "test_mqadmin_side_by_side": "it makes users itself, at both kinds of brokers",
    "test_a_cluster_goes_from_java_to_ours_and_back": "a broker of Java knows no users of ours",
    "test_tls_with_java": "add_client speaks no TLS",
    "test_replication_with_java": "a broker of Java knows no users of ours",
    "test_a_java_slave_acts_for_our_master": "a broker of Java knows no users of ours",
    "test_our_slave_acts_for_a_java_master": "a broker of Java knows no users of ours",
    "test_java_proxy_before_ours": "its own requests are not signed",
    "test_rocketmq5_page": "the page's program has no credentials",
}
"""Parts of the names of tests that cannot run with access control, and why."""
RIGHTS = [("Topic:*", [action]) for action in ("Pub", "Sub", "Get")] + [("Group:*", ["Sub"])]


def environment(folder: Path) -> dict[str, str]:
    """Make what tells programs who they are."""
    file = folder / "root.yml"
    file.touch(0o600)
    file.write_text(CREDENTIALS)
    return {"PEER_ACCESS_KEY": CLIENT, "PEER_SECRET_KEY": PASSWORD, "TRIOMQ_CREDENTIALS": str(file)}


def add_client(address: str) -> None:
    """Give the user of official clients to a broker; one that was started again has it, and a slave
    copies it.
    """
    with BlockingConnection(address) as connection:
        caller = Caller(connection)
        body = auth.User(password=PASSWORD).encode()
        if caller.ask_root(Code.AUTH_CREATE_USER, UserHeader(CLIENT), body).code == 0:
            caller.grant(CLIENT, RIGHTS, None)
