import sys

from sb3_avgcorr.zoo.cli import main

if __name__ == "__main__":
    sys.exit(main())
