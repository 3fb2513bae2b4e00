"""RocketMQ's remoting: the protocol without I/O, the staged server, and the client connector.

Import the modules, not this package: it is empty, so that a module costs only itself at start-up.
"""
