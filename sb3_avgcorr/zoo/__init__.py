"""
Our algorithms in RL Zoo: ``sb3-avgcorr train | enjoy | ...``, the same as ``python -m sb3_avgcorr.zoo ...``.

Importing this imports nothing of RL Zoo yet, which takes seconds; its functions do.
"""


def register() -> None:
    """
    Make our algorithms, environments and search spaces known to RL Zoo, for use of its own modules.
    """
    from sb3_avgcorr.zoo.registry import register as register_with_rl_zoo

    register_with_rl_zoo()


def train() -> None:
    """
    RL Zoo's ``train()`` with our algorithms, hyperparameter files and checks, without our command line::

        from sb3_avgcorr.zoo import train; train()
    """
    from sb3_avgcorr.zoo.registry import train as train_with_rl_zoo

    train_with_rl_zoo()


__all__ = ["register", "train"]
