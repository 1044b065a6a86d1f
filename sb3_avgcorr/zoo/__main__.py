"""``python -m sb3_avgcorr.zoo``: an older name of ``python -m sb3_avgcorr``."""

import runpy

if __name__ == "__main__":
    runpy.run_module("sb3_avgcorr", run_name="__main__")
