"""The commit log: the records of all topics, one behind the other; and forcing it to the disk."""
