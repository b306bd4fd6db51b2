"""A tiny Transformer with Hugging Face's Trainer, as written for torchrun; it imports nothing from this project.

Arguments: a folder for its checkpoints, and the minimum seconds per step.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

FOLDER, STEP_S = Path(sys.argv[1]), float(sys.argv[2])


class Notes(TrainerCallback):
    """Prints its progress, and stops when a file exists."""

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        print(f"begins on {args.world_size} at step {state.global_step}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        time.sleep(STEP_S)
        if state.global_step % args.save_steps == 0 and (FOLDER / "enough").exists():
            control.should_training_stop = True

    def on_evaluate(self, _args: Any, state: Any, _control: Any, metrics: Any, **_: Any) -> None:
        print(f"step {state.global_step} eval_loss {metrics['eval_loss']:.4f}", flush=True)


torch.manual_seed(0)
texts = [torch.arange(first, first + 16) % 32 for first in range(256)]
data = [{"input_ids": text, "labels": text} for text in texts]
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir=str(FOLDER),
    use_cpu=True,
    per_device_train_batch_size=8,
    max_steps=100_000,
    learning_rate=1e-3,
    eval_strategy="steps",
    eval_steps=20,
    save_steps=20,
    save_total_limit=2,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:32], callbacks=[Notes()])
saved = sorted(FOLDER.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
trainer.train(resume_from_checkpoint=str(saved[-1].parent) if saved else None)
print("done", flush=True)
