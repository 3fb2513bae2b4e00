"""Sending: the public class, its tries, the choice of a queue, the wire form of messages."""
