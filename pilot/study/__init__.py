"""Samplers of studies: Optuna chooses the parameters of trials, in a process that can be killed."""
