"""Which strategy to use: candidate layouts, their ranking, and why those behind the best lose."""
