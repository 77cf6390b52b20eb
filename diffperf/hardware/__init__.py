"""Hardware: accelerators, memory levels, network tiers, packages, systems, and the technologies behind them."""
