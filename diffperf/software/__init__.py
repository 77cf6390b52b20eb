"""What software brings: the stack that drives a system, and the library that runs its collectives."""
