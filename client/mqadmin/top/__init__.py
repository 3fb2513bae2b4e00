"""``mqadmin top``: a live view of a cluster in the terminal."""
