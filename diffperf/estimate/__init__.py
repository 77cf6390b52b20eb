"""Estimates of time, memory, energy and cost of a model's work on a system."""
