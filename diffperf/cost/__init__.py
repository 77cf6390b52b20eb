"""Costs: of dies, of packages, and of owning and running a system."""
