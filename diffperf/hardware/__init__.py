"""What exists: accelerators, memory levels, network tiers, packages, and the technology they are made in."""
