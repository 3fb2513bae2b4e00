"""Accounts of ACL 1.0 by requests: 50 to 54, which RocketMQ 4.4 to 5.2 has.

A change is in the file, and in force, when it is answered. On purpose different: these requests
need an administrator (4.9.4 lets every account make itself one, and read all secrets), and a
pattern of addresses that cannot be read is refused (4.9.4 writes it, and then takes no more edits).

Source: broker/processor/AdminBrokerProcessor.java, acl/…/plain/PlainPermissionManager.java (4.9.4).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from triomq.broker.services.plain_acl_files import PlainAclFiles
from triomq.remoting.access.plain_acl import LONGER_THAN
from triomq.remoting.core.errors import Rejected
from triomq.remoting.protocol.codes import ResponseCode
from triomq.remoting.server.requests import Request, Response

UPDATE_FAILED, DELETE_FAILED, WHITE_FAILED = 209, 210, 211
_TEXTS = ("whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm")
_LISTS = ("topicPerms", "groupPerms")


@attrs.define(eq=False)
class PlainAclRequests:
    """The handlers. ``files``: None without aclEnable."""

    files: PlainAclFiles | None
    cluster_name: str
    broker_name: str
    address: Callable[[], str]

    async def put(self, request: Request) -> Response:
        """Create or change an account; fields that are absent or empty stay."""
        fields = request.ext()
        key, secret = fields.get("accessKey"), fields.get("secretKey")
        if not key or not secret or len(key) <= LONGER_THAN or len(secret) <= LONGER_THAN:
            raise Rejected(
                UPDATE_FAILED,
                f"The accessKey={key} and secretKey={_shown(secret)} cannot be null and length"
                " should longer than 6",
            )

        def edit(document: dict[str, Any]) -> None:
            accounts = document.setdefault("accounts", [])
            account = next((each for each in accounts if each["accessKey"] == key), None)
            if account is None:
                account = {"accessKey": key}
                accounts.append(account)
            account["secretKey"] = secret
            account |= {name: fields[name] for name in _TEXTS if fields.get(name)}
            account |= {name: fields[name].split(",") for name in _LISTS if fields.get(name)}

        files = self._files()
        return await self._change(files, files.file_of(key), edit, UPDATE_FAILED)

    async def delete(self, request: Request) -> Response:
        """Delete an account."""
        key = request.ext().get("accessKey", "")
        files = self._files()
        if not any(account.access_key == key for account in files.acl.accounts):
            raise Rejected(
                DELETE_FAILED,
                f"The accesskey[{key}] corresponding to accessConfig has been deleted failed.",
            )

        def edit(document: dict[str, Any]) -> None:
            document["accounts"] = [
                each for each in document["accounts"] if each["accessKey"] != key
            ]

        return await self._change(files, files.file_of(key), edit, DELETE_FAILED)

    async def trust(self, request: Request) -> Response:
        """Replace the addresses from where everybody may do everything."""
        fields = request.ext()
        addresses = [each for each in fields.get("globalWhiteAddrs", "").split(",") if each]
        files = self._files()
        path = Path(fields.get("aclFileFullPath") or files.path)
        if path != files.path and path not in files.versions():
            raise Rejected(WHITE_FAILED, f"{path} is none of the files of this broker")

        def edit(document: dict[str, object]) -> None:
            document["globalWhiteRemoteAddresses"] = addresses

        return await self._change(files, path, edit, WHITE_FAILED)

    def versions(self, _request: Request) -> Response:
        """Return the version of each file."""
        files = self._files()
        found = {str(path): version for path, version in files.versions().items()}
        return Response(
            ext={
                "version": json.dumps(found.get(str(files.path), {"counter": 0, "timestamp": 0})),
                "allAclFileVersion": json.dumps(found),
                "brokerName": self.broker_name,
                "brokerAddr": self.address(),
                "clusterName": self.cluster_name,
            }
        )

    def accounts(self, _request: Request) -> Response:
        """Return all accounts, with their secrets: the sender is an administrator."""
        acl = self._files().acl
        body = {
            "globalWhiteAddrs": list(acl.white_addresses),
            "plainAccessConfigs": [dict(account.document) for account in acl.accounts],
        }
        return Response(body=json.dumps(body).encode())

    def _files(self) -> PlainAclFiles:
        if self.files is None:
            raise Rejected(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "this broker has no accounts of ACL 1.0: aclEnable is false",
            )
        return self.files

    async def _change(
        self,
        files: PlainAclFiles,
        path: Path,
        edit: Callable[[dict[str, object]], None],
        failed: int,
    ) -> Response:
        try:
            await files.change(path, edit)
        except ValueError as error:
            text = f"{error}".removeprefix(f"{path}: ")  # Java's texts do not name the file
            raise Rejected(failed, text) from None
        except OSError as error:
            raise Rejected(failed, f"{path} cannot be written: {error.strerror}") from None
        return Response()


def _shown(secret: str | None) -> str:
    """Java's text repeats the secret, which then stands in logs of its client."""
    return "null" if not secret else "(hidden)"
