"""The work: the model, the strategy, the operators that they imply and the memory that they need."""
