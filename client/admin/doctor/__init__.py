"""`mqadmin doctor`: what is known to hurt, looked for on this machine and in the cluster, each with its reason and its fix."""
