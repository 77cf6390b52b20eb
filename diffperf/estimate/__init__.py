"""How long the work takes on the hardware, how much energy it needs, and the report of it all."""
