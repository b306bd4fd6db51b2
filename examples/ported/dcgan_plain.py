"""Two convolutional networks that compete over digits, with an optimizer each, in the style of PyTorch's DCGAN."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader

NOISE = 16


def weights_init(module):
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, 0.0, 0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.0002)
    args = parser.parse_args()

    torch.manual_seed(1)
    digits = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    generator = nn.Sequential(
        nn.ConvTranspose2d(NOISE, 32, 4, 1, 0, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    ).apply(weights_init)
    discriminator = nn.Sequential(
        nn.Conv2d(1, 32, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 4, 1, 0, bias=False), nn.Flatten(0)
    ).apply(weights_init)
    optimizer_d = optim.Adam(discriminator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    optimizer_g = optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    loader = DataLoader(digits, batch_size=args.batch_size, shuffle=True)
    for epoch in range(args.epochs):
        for real in loader:
            ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
            # (1) the discriminator: tell real digits from generated ones
            optimizer_d.zero_grad()
            loss_real = criterion(discriminator(real), ones)
            loss_real.backward()
            fake = generator(torch.randn(len(real), NOISE, 1, 1))
            loss_fake = criterion(discriminator(fake.detach()), zeros)
            loss_fake.backward()
            optimizer_d.step()
            # (2) the generator: make digits that the discriminator takes for real
            optimizer_g.zero_grad()
            loss_g = criterion(discriminator(fake), ones)
            loss_g.backward()
            optimizer_g.step()
        print(f"epoch {epoch}: loss_D {(loss_real + loss_fake).item():.4f}, loss_G {loss_g.item():.4f}")


if __name__ == "__main__":
    main()
