"""The schemas with which bodies were written: files by id, or a schema registry.

The registry's protocol is that of Confluent's Schema Registry, which Apicurio and Karapace speak
too: ``GET /schemas/ids/ID`` and ``GET /subjects/SUBJECT/versions/VERSION``. The schema of an id
never changes, so each task keeps what it has read.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import attrs

from triomq.client.pipeline.core.errors import RegistryError
from triomq.client.pipeline.core.schema_file import FILE_BYTES_MAX, file_bytes
from triomq.client.pipeline.decoders.arrow_bodies import BadBody

TIMEOUT_SECONDS = 10.0
PAUSES_SECONDS = (0.5, 2.0)
"""before a second and a third try at a registry that fails"""
REFERENCES_MAX = 100
NOT_FOUND = (404, 410)


class WriterSchemas(Protocol):
    """Schemas by their ids. It is pickled once for a query, and called in the tasks."""

    def schemas(self, schema_id: int) -> dict[str, bytes]:
        """Return the texts of a schema: those that it refers to, in their order, then its own.

        The names are those that schemas refer by; its own is ``""``.

        Raises: BadBody for an id that is not known, RegistryError.
        """


@attrs.frozen
class SchemaFiles:
    """The key ``schemas`` of ``[decode]``: id → the content of a file."""

    contents: Mapping[int, bytes]

    def schemas(self, schema_id: int) -> dict[str, bytes]:
        """Return the content of a file. Raises: BadBody."""
        if schema_id not in self.contents:
            raise BadBody(f"schema {schema_id} is not one of decode.schemas")
        return {"": self.contents[schema_id]}


def read_schema_files(paths: Mapping[str, str]) -> SchemaFiles:
    """Return the schemas of files. Raises: SchemaError."""
    return SchemaFiles({int(number): file_bytes(path) for number, path in paths.items()})


@attrs.frozen
class SchemaRegistry:
    """The key ``registry`` of ``[decode]``.

    ``kind``: ``AVRO``, ``JSON`` or ``PROTOBUF``. ``login``: ``user:password``, or empty.
    """

    url: str
    kind: str
    login: str = attrs.field(default="", repr=False)

    def schemas(self, schema_id: int) -> dict[str, bytes]:
        """Return a schema and what it refers to. Raises: BadBody, RegistryError."""
        answer = self.get(f"/schemas/ids/{schema_id}")
        if answer is None:
            raise BadBody(f"the registry has no schema {schema_id}")
        kind = answer.get("schemaType", "AVRO")
        if kind != self.kind:
            raise BadBody(f"schema {schema_id} of the registry is {kind}, not {self.kind}")
        try:
            return dict(self.with_references("", answer, set()))
        except (KeyError, TypeError, AttributeError):
            fix = "is decode.registry the address of a schema registry?"
            raise RegistryError(self.url, "its answer has no schema", fix) from None

    def with_references(
        self, name: str, answer: Mapping[str, Any], seen: set[str]
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the schemas that a schema refers to, the inner ones first, and then its own."""
        for reference in answer.get("references") or []:
            subject = urllib.parse.quote(reference["subject"], safe="")
            path = f"/subjects/{subject}/versions/{reference['version']}"
            if path in seen:
                continue
            seen.add(path)
            if len(seen) > REFERENCES_MAX:
                raise BadBody(f"a schema refers to more than {REFERENCES_MAX} others")
            inner = self.get(path)
            if inner is None:
                raise BadBody(f"the registry lacks {reference['subject']}, which a schema needs")
            yield from self.with_references(reference["name"], inner, seen)
        yield name, answer["schema"].encode()

    def get(self, path: str) -> Mapping[str, object] | None:
        """Return an answer, or None if there is no such thing. Raises: RegistryError.

        A registry that fails or is silent is asked three times. It never makes a row bad.
        """
        request = urllib.request.Request(self.url.rstrip("/") + path)
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if self.login:
            token = base64.b64encode(self.login.encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        cause = ""
        for pause in (*PAUSES_SECONDS, None):
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                    found = json.loads(answer.read(FILE_BYTES_MAX))
                    if not isinstance(found, dict):
                        raise ValueError("its answer is not a JSON object")
                    return found
            except urllib.error.HTTPError as error:
                with error:
                    cause = f"it answered {error.code} {error.reason}"
                if error.code in NOT_FOUND:
                    return None
                if error.code < 500:
                    break
            except (OSError, ValueError) as error:
                cause = str(error)
            if pause is not None:
                time.sleep(pause)
        fix = "check decode.registry, and decode.registry_login if it asks for one"
        raise RegistryError(self.url, cause, fix)
