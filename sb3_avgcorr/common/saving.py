"""Saving and loading of the correction, so that plain SB3 reads our files and we read SB3's."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch as th
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import TensorDict
from torch.optim.swa_utils import AveragedModel

from sb3_avgcorr.common.correction import CorrectionNetwork
from sb3_avgcorr.common.critic import CriticFit, CriticLearningRate
from sb3_avgcorr.common.estimator import as_arrays, as_tensors

if TYPE_CHECKING:
    from sb3_avgcorr.common.estimator import CorrectionEstimator, PowerWeights
    from sb3_avgcorr.common.strength import Strength

#: names of the correction's state beside SB3's in ``get_parameters``
OWN_STATE = ("correction_net", "correction_average", "correction_optimizer")


class SavedCorrection(CriticLearningRate):
    """
    Base of algorithms with a correction: keeps what it has learned in saved models.

    ``get_parameters`` and ``set_parameters`` have the correction's networks and optimiser beside the policy's. In a file they
    lie among the plain data, as arrays, where SB3 passes over them: ``PPO.load`` reads a model of ``AveragingPPO``.
    """

    correction_estimator: CorrectionEstimator | None
    _power: PowerWeights
    _strength: Strength
    _critic_fit: CriticFit | None
    #: whether ``save`` is at work, which keeps the correction's state elsewhere than ``get_parameters``
    _saving = False

    @property
    def correction_net(self) -> CorrectionNetwork | None:
        """The network that estimates E[γ^t | s]; None if there is nothing to learn."""
        return None if self.correction_estimator is None else self.correction_estimator.network

    @property
    def correction_average(self) -> AveragedModel | None:
        """The network with its parameters averaged over fits; None if it is not averaged."""
        return None if self.correction_estimator is None else self.correction_estimator.average

    @property
    def correction_optimizer(self) -> th.optim.Optimizer | None:
        """The optimiser of the network, and of the critic's layers that it shares."""
        return None if self.correction_estimator is None else self.correction_estimator.optimizer

    def _excluded_save_params(self) -> list[str]:
        ours = [
            "correction_estimator",
            "correction_weights",
            "_correction_rng",
        ]
        parts = ["_clock", "_power", "_strength", "_engine", "_critic_layers", "_critic_fit", "_saving"]
        parts += ["_made_from", "_wanted_fast"]
        return [*super()._excluded_save_params(), *ours, *parts]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        names, variables = super()._get_torch_save_params()
        own = [] if self._saving else [name for name in OWN_STATE if getattr(self, name) is not None]
        return names + own, variables

    def save(
        self, path: str | Path | BufferedIOBase, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
    ) -> None:
        """
        Save the model; plain SB3 can load it too.

        :param path: path of the file, or an open file
        :param exclude: attributes that are not to be saved beside the default ones
        :param include: attributes that are to be saved although they are not by default
        """
        estimator = self.correction_estimator
        self._correction_state: dict[str, Any] = {
            "estimator": None if estimator is None else estimator.get_state(),
            "power": self._power.get_state(),
            "strength": self._strength.get_state(),
            "critic_optimizer": None if self._critic_fit is None else as_arrays(self._critic_fit.optimizer.state_dict()),
        }
        self._saving = True
        try:
            super().save(path, exclude, include)
        finally:
            del self._saving, self._correction_state

    def _restore(self, state: dict[str, Any] | None = None) -> None:
        """
        Take up what was learned before the model was saved, once its parts are made.

        :param state: what ``save`` has written; None: as ``load`` left it
        """
        if state is None:
            state = self.__dict__.pop("_correction_state", None)
        if state is None:
            if self.num_timesteps > 0 and self.correction_estimator is not None:
                self._tell_afresh("the file holds none")
            return
        self._power.set_state(state["power"])
        self._strength.set_state(state["strength"])
        if self._critic_fit is not None and state["critic_optimizer"] is not None:
            self._critic_fit.optimizer.load_state_dict(as_tensors(state["critic_optimizer"]))
        if self.correction_estimator is not None:
            if state["estimator"] is None:
                self._tell_afresh("the file holds none")
                return
            try:
                self.correction_estimator.set_state(state["estimator"])
            except ValueError as error:
                self._tell_afresh(str(error))

    def _tell_afresh(self, why: str) -> None:
        warnings.warn(f"The correction starts afresh: {why}.", stacklevel=3)

    def set_parameters(
        self, load_path_or_dict: str | TensorDict, exact_match: bool = True, device: th.device | str = "auto"
    ) -> None:
        """
        Take parameters as SB3 does. Those of a model without a correction (one of SB3's own, say) are taken too; the
        correction's own then stay as they are.

        :param load_path_or_dict: a file of a saved model, or what ``get_parameters`` gives
        :param exact_match: whether every parameter of the algorithm must be there
        :param device: device on which the code should run
        """
        params: Any = load_path_or_dict
        if not isinstance(params, dict):
            data, params, _ = load_from_zip_file(params, device=device)
            if data and "_correction_state" in data:
                self._restore(data["_correction_state"])
        own = {name for name in OWN_STATE if getattr(self, name) is not None}
        params = {name: value for name, value in params.items() if name in own or name not in OWN_STATE}
        if own.isdisjoint(params):
            mine = self.get_parameters()
            params = {**params, **{name: mine[name] for name in own}}
        super().set_parameters(params, exact_match=exact_match, device=device)
