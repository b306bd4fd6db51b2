"""Several models and optimizers, tracked objects, and changes of the trained set. The tests are in files of their
own.
"""

from __future__ import annotations

from tests.equivalence.rows import Elsewhere, Row, Topic


def elsewhere(module: str, scripts: dict[str, str], *, refused: dict[str, tuple[str, str]]) -> list[Row]:
    """Rows tested in ``module``: the name by script; for a refused one, also what to do instead."""
    return [
        *[Elsewhere(name=name, test=f"{module}:{script}") for script, name in scripts.items()],
        *[Elsewhere(name=name, test=f"{module}:{s}", instead=instead) for s, (name, instead) in refused.items()],
    ]


SEVERAL = elsewhere(
    "test_several",
    {
        "gan": "a GAN: two models, two optimizers with names, a scheduler",
        "several_critics": "a GAN whose generator has its turn in each second batch",
        "normed": "a GAN with a spectral norm",
        "frozen_norm": "a GAN whose generator has a batch norm in evaluation mode",
        "toggled": "each of two parts frozen while the other one trains",
        "together": "one loss, two optimizers over parts of one model",
        "all_at_once": "two backwards, two optimizers stepped at once",
        "bare_parameter": "a parameter that is in the optimizer and in no module",
        "sums_used": "session.sum of one of two optimizers",
    },
    refused={
        "in_two_optimizers": ("a parameter in two optimizers", "in one"),
        "list_of_models": ("a list of models", "a dict of them by name"),
        "scheduler_without_name": ("a scheduler without its optimizer's name", "a dict by the same names"),
        "uses_the_others_gradients": ("gradients of another optimizer, without its zero_grad", "zero_grad of both"),
        "steps_one_itself": ("one of two optimizers stepped by the script", "session.step(loss, name)"),
        "in_micro_batches": ("optimizers by name, micro_batch_size", "stepped at once"),
        "steps_none": ("a batch in which none of the optimizers is stepped", "session.step"),
    },
)
TRACKED = elsewhere(
    "test_tracked",
    {
        "average_after": "swa_utils.AveragedModel (EMA), tracked",
        "average_before": "an EMA teacher in the loss, tracked",
        "counter": "an object with state_dict, tracked",
        "own_scheduler": "a scheduler that the script steps, tracked",
        "slow_weights": "an optimizer around the session's (Lookahead), tracked",
        "learns_from_rollouts": "data made in the loop (rollouts), tracked",
        "forward_changes": "a module whose forward replaces and scales its tensors",
    },
    refused={
        "tracks_late": ("session.track in the loop", "before session.epochs"),
        "tracks_a_number": ("tracking what has no state_dict", "`session.state`"),
        "tracks_what_does_not_fit": ("tracking a state that cannot be saved", "tensors, numbers, ..."),
        "tracks_what_cannot_be_loaded": (
            "tracking a state that its object cannot load",
            "a load_state_dict that takes it",
        ),
    },
)
GROWING = elsewhere(
    "test_growing",
    {
        "in_the_model": "a model's buffer that grows between epochs (exemplars)",
        "tracked": "a tracked module's buffer that grows between epochs (rollouts)",
    },
    refused={},
)
CHANGES = elsewhere(
    "test_trained_set",
    {
        "unfrozen": "a layer unfrozen at an epoch's beginning",
        "pruned_further": "a layer pruned further at an epoch's beginning, by importance_scores=",
        "layer_by_layer": "one group more in each epoch",
        "frozen_later": "a layer frozen and unfrozen, alternately",
        "by_name": "an optimizer of named parameters, add_param_group",
    },
    refused={
        "adds_a_new_parameter": ("add_param_group with a parameter made later", "before the session"),
        "unfreezes_what_nobody_steps": ("a layer unfrozen that no optimizer has", "add_param_group"),
    },
)
TOPIC = Topic(
    70, "Several models and optimizers, what is tracked, what is trained", [*SEVERAL, *TRACKED, *GROWING, *CHANGES]
)
