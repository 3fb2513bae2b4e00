"""SQL92 filters over a message's properties: read, compile, evaluate. Pure: no I/O, no clock."""
