"""The staged server: boss, selectors, codecs and business pools (docs/architecture/server.md)."""
