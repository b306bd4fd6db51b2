import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import pilot.train

digits = load_digits()
x, y = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1), torch.tensor(digits.target)
data = torch.utils.data.TensorDataset(x[:1500], y[:1500])
model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

session = pilot.train.session(model, optimizer)
loader = session.loader(data, global_batch_size=250)  # divided over the nodes
for epoch in session.epochs(int(sys.argv[1])):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        session.step(loss)  # instead of optimizer.step()
    print(f"epoch {epoch}: accuracy {(model(x[1500:]).argmax(1) == y[1500:]).float().mean():.3f}")
if session.rank == 0:
    torch.save(model.state_dict(), "model.pt")
