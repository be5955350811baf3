"""`python -m tbactl.cli`, the same as `tbactl`."""

import sys

from tbactl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
