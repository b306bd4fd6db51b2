"""Samplers of studies: the parameters of trials, by Optuna, in a process that can be killed"""
