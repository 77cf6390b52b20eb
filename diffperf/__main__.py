"""`python -m diffperf`: the command line."""

from diffperf.cli import main

main()
