"""Serving: the steady state of continuous batching, with all engines alike or split by phase."""
