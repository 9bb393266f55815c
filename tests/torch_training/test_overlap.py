"""What leaves when, on a link that is slow: seen in the trace."""

from __future__ import annotations

import torch
from bench.overlap import Slow
from torch import nn

import windlass as wl
from windlass import trace

LAYERS = 8
WIDTH = 512  # 1 MiB a layer
STEPS = 4


def train(store, seconds, width, steps):
    model = nn.Sequential(*(Slow(seconds, width) for _ in range(LAYERS)))
    optimizer = wl.torch.Optimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3),
        store,
        named_parameters=model.named_parameters(),
        bucket_bytes=0,  # each layer its own
    )
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, width)).mean().backward()
        optimizer.step()


def traced(tmp_path, seconds, rate, width=WIDTH, steps=STEPS):
    path = str(tmp_path / "trace.json")
    with wl.Cluster(workers=2, transport="tcp", link_bytes_per_second=rate, trace=path) as cluster:
        cluster.run(train, seconds, width, steps)
    return path


def test_communication_is_hidden_behind_a_backward_that_is_long_enough(tmp_path):
    path = traced(tmp_path, 0.04, 100_000_000)
    rows = [row for row in trace.overlap(path) if row.step is not None and 2 <= row.step < STEPS]
    assert len(rows) == 2 * (STEPS - 2)
    assert trace.share_hidden(rows) > 0.6


def test_on_a_link_that_is_too_slow_the_first_layers_come_back_first(tmp_path):
    path = traced(tmp_path, 0.0, 40_000_000, width=1024, steps=3)  # 4 MiB a layer, and backward takes no time
    ends: dict[str, list[tuple[float, str]]] = {}
    for event in trace.load(path):
        if event.get("cat") == "pushpull" and "weight" in event["name"]:
            layer = event["name"].split("optimizer/")[1].split(".")[0].strip("'")
            ends.setdefault(str(event["pid"]), []).append((event["ts"] + event["dur"], layer))
    assert len(ends) == 2
    for came in ends.values():
        order = [layer for _, layer in sorted(came)][-LAYERS:]  # the last step
        assert sorted(order) == [str(number) for number in range(LAYERS)]
        # The last layers are on their way before the first is known. In order of production it would come last.
        assert order.index("0") <= LAYERS // 2
        assert order.index("0") < order.index("3")
