"""What it costs: silicon, packages, and owning and running a system."""
