"""``python -m sb3_avgcorr``: the same as the ``sb3-avgcorr`` command."""

import sys

from sb3_avgcorr.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
