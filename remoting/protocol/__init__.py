"""The wire protocol and the record layout, without I/O: bytes or values in, values or bytes out.

The modules of this package know no sockets, files, clocks or tasks.
"""
