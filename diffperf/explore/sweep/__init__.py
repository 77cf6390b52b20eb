"""Every configuration of a declared space."""
