"""4 x 4 digits upscaled to 8 x 8 by sub-pixel convolution, in the style of PyTorch's super resolution."""

import argparse
import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, upscale_factor**2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        for conv in (self.conv1, self.conv2):
            nn.init.orthogonal_(conv.weight, nn.init.calculate_gain("relu"))

    def forward(self, x):
        return self.pixel_shuffle(self.conv3(F.relu(self.conv2(F.relu(self.conv1(x))))))


def test(model, loader, criterion):
    psnr = 0.0
    with torch.no_grad():
        for x, target in loader:
            psnr += 10 * math.log10(1 / criterion(model(x), target).item())
    return psnr / len(loader)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--upscale-factor", type=int, default=2)
    parser.add_argument("--save", default="", help="where to put the model at the end")
    args = parser.parse_args()

    torch.manual_seed(1)
    digits = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
    pairs = F.avg_pool2d(digits, args.upscale_factor), digits
    train_set, test_set = (
        TensorDataset(*(images[part] for images in pairs)) for part in (slice(1500), slice(1500, None))
    )
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=100)
    model = Net(args.upscale_factor)
    optimizer = optim.Adam(model.parameters(), lr=0.001)
    criterion = nn.MSELoss()
    for epoch in range(args.epochs):
        for x, target in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: average PSNR {test(model, test_loader, criterion):.2f} dB")
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
