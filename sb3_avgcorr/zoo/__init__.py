"""
Our algorithms in RL Zoo: ``sb3-avgcorr train | enjoy | ...``, the same as ``python -m sb3_avgcorr.zoo ...``.

Importing this imports nothing of RL Zoo yet, which takes seconds; :func:`register` does.
"""


def register() -> None:
    """
    Make our algorithms, environments, hyperparameter files and search spaces known to RL Zoo, for use of its own modules::

        from sb3_avgcorr.zoo import register; register()
        from rl_zoo3.train import train; train()
    """
    from sb3_avgcorr.zoo.registry import register as register_with_rl_zoo

    register_with_rl_zoo()


__all__ = ["register"]
