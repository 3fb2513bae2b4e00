"""The wire protocol and the record layout, without I/O: bytes or values in, values or bytes out.

Nothing below this package knows sockets, files, clocks or tasks.
"""
