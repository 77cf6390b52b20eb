"""Choice of the hardware to build: constrained optimization of continuous and whole design variables."""
