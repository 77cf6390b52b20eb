"""Plans: the strategies of a system's devices, ranked, and the reasons why those behind the best lose."""
