"""``mqadmin topic tail``: show the messages of a topic as they come."""
