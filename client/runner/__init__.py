"""Programs around the SDK: stopping in order, probes, consumers from the command line."""
