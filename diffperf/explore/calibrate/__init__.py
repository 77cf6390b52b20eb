"""Efficiencies and overheads fitted to measurements, and how sure they are."""
