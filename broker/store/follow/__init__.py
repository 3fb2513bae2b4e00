"""The log of a slave: a copy of its master's log, byte for byte."""
