"""Which parameters of a study matter: Optuna's functional ANOVA of what its trials reported at the first rung."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

FEWEST = 4
"""Fewer trials than this are not enough."""


def importance(file: Path, study: str) -> dict[str, float]:
    """The importance of each parameter, from Optuna's journal ``file`` of ``study``; {} if too little is known."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        loaded = optuna.load_study(study_name=study, storage=JournalStorage(JournalFileBackend(str(file))))
        if len(loaded.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])) < FEWEST:
            return {}
        return dict(optuna.importance.get_param_importances(loaded))
    except (OSError, KeyError, ValueError, RuntimeError, ImportError):
        return {}
