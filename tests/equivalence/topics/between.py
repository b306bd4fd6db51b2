"""What a script does to a model and its optimizer besides its steps. The tests are in a file of their own."""

from __future__ import annotations

from tests.equivalence.rows import Topic
from tests.equivalence.topics.several import elsewhere

ROWS = elsewhere(
    "test_between_steps",
    {
        "rate_lowered_at_first": "group['lr'] *= 0.5 at an epoch's beginning",
        "rate_lowered_at_last": "group['lr'] *= 0.5 at an epoch's end",
        "rate_lowered_after_each_step": "group['lr'] *= 0.5 after session.step",
        "rate_lowered_in_each_iteration": "group['lr'] *= 0.5 in session.iterations",
        "momenta_forgotten": "optimizer.state.clear() at an epoch's beginning",
        "momenta_scaled_after_each_step": "momenta in optimizer.state scaled after session.step",
        "momenta_loaded_after_each_step": "optimizer.load_state_dict of its edited state after session.step",
        "unsaved_buffer_scaled_after_each_step": "a buffer with persistent=False, scaled after session.step",
        "unsaved_buffer_replaced_in_forward": "a buffer with persistent=False, replaced in forward",
        "weights_decayed_after_each_step": "weights changed after session.step",
        "weights_loaded_at_last": "load_state_dict at an epoch's end",
        "left_in_evaluation_mode": "model.eval() at an epoch's end, and no model.train()",
    },
    refused={
        "registers_in_forward": ("a buffer registered in forward", "in __init__, or persistent=False"),
        "changes_the_layout": ("channels_last after the session is made", "before it"),
        "changes_the_type": ("model.float() after the session is made", "before it"),
        "steps_a_scheduler_by_itself": (
            "a scheduler that the script steps, not tracked",
            "schedule=, or session.track",
        ),
        "tracks_what_is_made_later": ("a tracked module that makes its parts later", "before the loop"),
    },
)
TOPIC = Topic(69, "Between two steps", ROWS)
