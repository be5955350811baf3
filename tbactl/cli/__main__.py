"""`python -m tbactl.cli`, the same as `tbactl`."""

import sys


def main() -> int:
    """Import and run the command line; Ctrl-C ends it without a traceback from the first import on."""
    try:
        from tbactl.cli.main import main as command_line

        return command_line()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
