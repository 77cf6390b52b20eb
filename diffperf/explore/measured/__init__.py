"""Tables of measurements, and the estimator's predictions for their rows."""
