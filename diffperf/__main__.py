"""`diffperf` and `python -m diffperf`: the command line, which Ctrl-C ends in one line from the start."""

from diffperf.interrupts import end_imports_at_once


def main() -> None:
    """Runs the command line of the process."""
    end_imports_at_once()
    from diffperf.cli import main as run

    run()


if __name__ == "__main__":
    main()
