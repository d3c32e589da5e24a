"""``python -m pluribus.cli``."""

import sys

from pluribus.cli import main

if __name__ == "__main__":
    sys.exit(main())
