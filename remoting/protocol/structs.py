"""msgspec, or where it is not installed ``plain_msgspec``: ``from … import msgspec``.

Every installation has msgspec. Only the zip for Spark's executors does without: it has no compiled
modules, so that it fits every platform and Python.
"""

try:
    import msgspec
except ImportError:
    from triomq.remoting.protocol import plain_msgspec as msgspec  # type: ignore[no-redef]

__all__ = ["msgspec"]
