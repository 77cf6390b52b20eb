"""What has to be done: the model, the strategy, the operators they imply and the memory they need."""
