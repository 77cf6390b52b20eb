"""How long collectives take: topologies, algorithms, and groups placed on network tiers."""
