"""``mqadmin doctor``: checks for known problems of this machine and of the cluster."""
