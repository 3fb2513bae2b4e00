"""The console: web pages for people who run a cluster (``mqconsole``; docs/console.md)."""
