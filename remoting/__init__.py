"""RocketMQ's remoting: the protocol without I/O, the staged server, and the client connector.

Import the modules, not this package: it stays empty so that one module costs only itself at start-up.
"""
