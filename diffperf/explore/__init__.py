"""What people ask of the estimator: the best layout, a sweep, sensitivities, a design."""
