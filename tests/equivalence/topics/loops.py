"""How a script goes through its batches, and what counts as a step. The tests are in files of their own."""

from __future__ import annotations

from tests.equivalence.rows import Topic
from tests.equivalence.topics.several import elsewhere

LOOPS = elsewhere(
    "test_loops",
    {
        "by_next": "session.iterations, loader.next",
        "test_a_schedule_of_samples_is_as_far_after_them_on_any_number_of_nodes": "schedule='samples'",
    },
    refused={
        "takes_a_batch_before": ("loader.next before session.iterations", "`for _ in session.iterations(n)`"),
        "skips_a_batch": ("a batch without session.step", "session.step for each"),
        "skips_a_turn": ("an iteration without session.step", "session.step in each"),
        "takes_two_batches": ("two batches for one step", "micro_batch_size"),
        "leaves_an_epoch_early": ("an epoch's batches left in the middle", "session.stop, or session.iterations"),
        "evaluates_in_a_step": ("session.evaluate between backward and session.step", "between two steps"),
    },
)
WEIGHTS = elsewhere(
    "test_weights",
    {"token_loss": "a mean over tokens, session.step(loss, weight=tokens)"},
    refused={"test_a_weight_on_one_rank_alone_is_refused": ("a weight on one rank alone", "on all ranks")},
)
TOPIC = Topic(65, "Loops and weights", [*LOOPS, *WEIGHTS])
