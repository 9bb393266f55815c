"""Learning rate and batch size: k devices take a batch k times as large. Which learning rate is best then?

    python examples/learning_rates.py                      a quarter of a minute, on replicas on the CPU
    python examples/learning_rates.py --model lenet --epochs 10 --data full --device cuda

Prints the test accuracy for every learning rate and number of devices, and draws it in learning_rates.png.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import windlass as wl
from windlass.apps import fashion
from windlass.apps.lenet import lenet

RATES = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
Samples = tuple[torch.Tensor, torch.Tensor]


def softmax_regression(seed: int) -> nn.Module:
    """One layer: many trainings in seconds, and curves without noise."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


MODELS = {"softmax": softmax_regression, "lenet": lenet}


def samples(split: fashion.Split, limit: int | None = None) -> Samples:
    images = torch.tensor(split.images[:limit]).unsqueeze(1).float().sub_(73).div_(90)  # mean 0, deviation 1
    return images, torch.tensor(split.labels[:limit], dtype=torch.int64)


def train(options: argparse.Namespace, data: Samples, devices: list[str], rate: tuple[float, int | None]) -> nn.Module:
    """Train with a batch that grows with the devices; scale the learning rate likewise if there is a warm-up."""
    lr, warmup_steps = rate
    model = wl.torch.DataParallel(MODELS[options.model](options.seed), devices)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    schedule = None if warmup_steps is None else wl.torch.scale_lr(optimizer, len(devices), warmup_steps=warmup_steps)
    images, labels = data
    shuffle = torch.Generator().manual_seed(options.seed)
    size = options.batch * len(devices)
    for _ in range(options.epochs):
        for rows in torch.randperm(len(labels), generator=shuffle).split(size):
            if len(rows) < len(devices):
                continue  # what an epoch leaves over
            optimizer.zero_grad()
            functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
    return model


def name_devices(kind: str, count: int) -> list[str]:
    return ["cpu"] * count if kind == "cpu" else [f"{kind}:{index}" for index in range(count)]


def compare(options: argparse.Namespace, data: fashion.Data) -> dict[str, dict[float, float]]:
    """Accuracy by kind of training and learning rate, printed as it comes."""
    train_data, test = samples(data.train, options.images), samples(data.test)
    most = max(options.devices)
    steps = math.ceil(len(train_data[1]) / (options.batch * most)) * options.epochs
    kinds = {f"{k} × {options.batch}": (k, None) for k in options.devices}
    kinds[f"{most} × {options.batch}, rate × {most}"] = (most, steps // 10)
    print("learning rate", *kinds, sep=" | ")
    found: dict[str, dict[float, float]] = {kind: {} for kind in kinds}
    for lr in options.rates:
        print(f"{lr:>13g}", end="", flush=True)
        for kind, (k, warmup_steps) in kinds.items():
            model = train(options, train_data, name_devices(options.device, k), (lr, warmup_steps))
            found[kind][lr] = wl.torch.evaluate(model, test)
            print(f" | {found[kind][lr]:>{len(kind)}.3f}", end="", flush=True)
        print()
    explain(options, found)
    return found


def explain(options: argparse.Namespace, found: dict[str, dict[float, float]]) -> None:
    most = max(options.devices)
    print(
        f"""
Columns: devices × samples for each. With k times the batch an epoch has k times fewer steps, and at the same learning
rate it comes less far. The last column is wl.torch.scale_lr(optimizer, {most}): after a warm-up {most} times the rate
of its row. While that is not too large for the model, it ends where one device does with {most} times the steps.
"""
    )
    for kind, row in found.items():
        print(f"best learning rate for {kind}: {max(row, key=lambda lr: row[lr]):g}")


def draw(path: Path, options: argparse.Namespace, found: dict[str, dict[float, float]]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: it needs matplotlib, from `pip install 'windlass[demo]'`", file=sys.stderr)
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for kind, row in found.items():
        axes.semilogx(list(row), list(row.values()), "o-", label=kind)
    axes.set(xlabel="learning rate", ylabel="test accuracy", title=f"{options.model}, epochs: {options.epochs}")
    axes.legend(title="devices × batch")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    print(f"drawn in {path}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4], help="numbers of devices")
    parser.add_argument("--device", default="cpu", help="cpu: replicas on the CPU; cuda: cuda:0, cuda:1, ...")
    parser.add_argument("--batch", type=int, default=16, help="samples for one device")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, help="train on the first so many")
    parser.add_argument("--model", choices=MODELS, default="softmax")
    parser.add_argument("--data", default="sample", help="sample, full, auto, or a directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, default=Path("learning_rates.png"))
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    source = fashion.find(options.data, fashion.default_places(os.environ), print)
    if options.model == "softmax":
        torch.set_num_threads(1)  # its operations are too small to be shared out
    started = time.perf_counter()
    print(f"Fashion-MNIST{', the sample that ships' * source.is_sample}; {options.model}, epochs: {options.epochs}\n")
    try:
        found = compare(options, source.load())
    except wl.UsageError as error:
        sys.exit(f"learning_rates.py: {error}")
    print(f"{time.perf_counter() - started:.0f} s")
    draw(options.plot, options, found)


if __name__ == "__main__":
    main()
