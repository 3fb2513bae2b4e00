"""The controller: elects the master of each broker group (docs/architecture/controller.md)."""
