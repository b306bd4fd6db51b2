"""The plain loop: what the other scripts of the head-to-head are compared with, line by line."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.peers_record import EPOCHS, SUBJECT, Numbered, Record
from benchmarks.subjects import BATCH, make, sgd

torch.set_num_threads(1)
model = make(SUBJECT)
optimizer = sgd(model)
loader = DataLoader(Numbered(), BATCH, shuffle=True)
record = Record(model)
step = 0
for _ in range(EPOCHS):
    for x, y, samples in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        record.done(step, samples)
