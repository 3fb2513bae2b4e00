"""The errors of pipelines. Each says cause and fix in one line.

PipelineError
├── SpecError        the file of a pipeline has a mistake; also ValueError
├── SchemaError      a schema file cannot be used; also ValueError
├── RegistryError    the schema registry does not answer
├── SessionError     Spark, or what the pipeline needs in it, is missing
├── ReadRefused      a sample or a selection cannot be read
├── LockHeld         another process writes to the tables (tables/locks.py)
└── LockLost         another process has taken over (tables/locks.py)
"""

from __future__ import annotations


class PipelineError(Exception):
    """Base of the errors of pipelines."""


class SpecError(PipelineError, ValueError):
    """The file of a pipeline has a mistake.

    ``path``: the file, empty if the spec was made by a program. ``key``: the place in the file, as
    ``rules[2].check``.
    """

    def __init__(self, path: str, key: str, cause: str, fix: str) -> None:
        super().__init__(path, key, cause, fix)
        self.path = path
        self.key = key
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        """Name the file, the key, the cause and the fix."""
        place = f"{self.path}: " if self.path else ""
        return (
            f"{place}{self.key}: {self.cause}; {self.fix}"
            if self.key
            else (f"{place}{self.cause}; {self.fix}")
        )


class SchemaError(PipelineError, ValueError):
    """A schema file cannot be read, or does not fit the format."""

    def __init__(self, path: str, cause: str, fix: str) -> None:
        super().__init__(path, cause, fix)
        self.path = path
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        """Name the file, the cause and the fix."""
        return f"{self.path}: {self.cause}; {self.fix}"


class RegistryError(PipelineError):
    """The schema registry does not answer, or refuses."""

    def __init__(self, url: str, cause: str, fix: str) -> None:
        super().__init__(url, cause, fix)

    def __str__(self) -> str:
        """Name the registry, the cause and the fix."""
        url, cause, fix = self.args
        return f"the schema registry {url} cannot be used: {cause}; {fix}"


class SessionError(PipelineError):
    """Spark, or a package that the pipeline needs in it, is missing."""


class ReadRefused(PipelineError):
    """A sample or a selection of messages cannot be read."""
