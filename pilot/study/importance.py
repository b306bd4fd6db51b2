"""Which parameters of a study matter: functional ANOVA over what its trials reported at the first rung (Optuna's)."""

from __future__ import annotations

from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

FEWEST = 4
"""Fewer trials are not enough."""


def importance(file: Path, study: str) -> dict[str, float]:
    """By parameter, from Optuna's journal ``file`` of ``study``; {} if too little is known."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        loaded = optuna.load_study(study_name=study, storage=JournalStorage(JournalFileBackend(str(file))))
        if len(loaded.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])) < FEWEST:
            return {}
        return dict(optuna.importance.get_param_importances(loaded))
    except (OSError, KeyError, ValueError, RuntimeError, ImportError):
        return {}
