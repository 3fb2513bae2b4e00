"""Receiving: what the consumers of ``client/sdk`` share, from membership to settlement."""
