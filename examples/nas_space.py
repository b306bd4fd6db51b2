"""The search space of examples/nas_digits.py: one of five operations on each of a cell's six edges."""

OPERATIONS = ["none", "skip", "conv1x1", "conv3x3", "pool3x3"]


def space(trial):
    """Called for each trial, with an Optuna trial."""
    for edge in range(6):
        trial.suggest_categorical(f"edge{edge}", OPERATIONS)
