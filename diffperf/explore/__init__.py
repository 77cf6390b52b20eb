"""The tools that ask many estimates: plans, sweeps, sensitivities, co-design, validation and calibration."""
