"""Hardware: accelerators, memory levels, network tiers, packages, systems, technologies."""
