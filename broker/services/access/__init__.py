"""Access control of a broker: its settings, and the file of users and rules."""
