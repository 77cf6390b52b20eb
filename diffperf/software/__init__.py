"""Software: the stack that drives a system, and the library that runs the collectives of the stack."""
