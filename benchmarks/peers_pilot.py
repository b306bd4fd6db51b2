"""The plain loop, elastic with pilot."""

import torch
from torch import nn

import pilot.train
from benchmarks.peers_record import EPOCHS, SUBJECT, Numbered, Record
from benchmarks.subjects import BATCH, make, sgd

torch.set_num_threads(1)
model = make(SUBJECT)
optimizer = sgd(model)
session = pilot.train.session(model, optimizer, lr_rule="none")
loader = session.loader(Numbered(), batch_size=BATCH)
record = Record(model)
for _ in session.epochs(EPOCHS):
    for x, y, samples in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if session.step(loss):
            record.done(session.steps, samples)
