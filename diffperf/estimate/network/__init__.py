"""Time of collectives: topologies, algorithms, and groups placed on network tiers."""
