"""`python -m diffperf`: the command line."""

from diffperf.cli import main

if __name__ == "__main__":
    main()
