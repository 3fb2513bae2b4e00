"""POP: messages that any consumer of a group may take, hidden from the others for a while."""
