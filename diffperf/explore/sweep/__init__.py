"""Sweeps: every configuration of a declared space, estimated and ranked."""
