"""What a caller can get wrong with devices, and what he is told."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import windlass as wl
from tests.torch_devices.models import batch, mlp

CPUS = ["cpu"] * 2


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (["cpu", "cuda:7"], "'cuda:7' does not exist"),
        (["cuda:0"], "'cuda:0' does not exist: torch finds no CUDA device"),
        (["gpu"], "'gpu' is not the name of a device"),
        (["cpu", None], "None is not the name of a device"),
        (["meta"], "'meta' does not exist or cannot compute here"),
        ([], "devices is empty"),
        ("cpu", "devices is a list"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is said without CUDA")
def test_a_device_that_does_not_exist_is_named(devices, said):
    with pytest.raises(wl.UsageError, match=said):
        wl.torch.DataParallel(mlp(), devices)
    with pytest.raises(wl.UsageError, match=said):
        wl.torch.split_batch(*batch(4), devices)


def test_a_strategy_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(wl.UsageError, match=r"(?s)ring.*got 'rong'"):
        wl.torch.DataParallel(mlp(), CPUS, strategy="rong")


class Uncopiable(nn.Module):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: "net", "expects a torch.nn.Module, got str"),
        (lambda: wl.torch.DataParallel(mlp(), CPUS), "is a DataParallel already"),
        (lambda: nn.Sequential(nn.LazyLinear(4)), "'0.weight' has no shape yet"),
        (Uncopiable, "Uncopiable cannot be copied to cpu, cpu"),
        (lambda: nn.Linear(2, 2, device="meta"), "Linear cannot be copied"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_model_that_cannot_be_replicated_is_refused(model, said):
    with pytest.raises(wl.UsageError, match=said):
        wl.torch.DataParallel(model(), CPUS)


def test_a_batch_smaller_than_the_devices_names_both_numbers():
    x, y = batch(2)
    with pytest.raises(wl.UsageError, match="a batch of 2 cannot be split over 3 devices"):
        wl.torch.DataParallel(mlp(), ["cpu"] * 3)(x)
    with pytest.raises(wl.UsageError, match="a batch of 2 cannot be split over 3 devices"):
        wl.torch.split_batch(x, y, ["cpu"] * 3)


def test_tensors_of_different_lengths_and_no_tensors_are_refused():
    model = wl.torch.DataParallel(mlp(), CPUS)
    with pytest.raises(wl.UsageError, match="tensors of 4 and 5 rows"):
        model(torch.zeros(5, 6), mask=torch.zeros(4))
    with pytest.raises(wl.UsageError, match="no tensor to split"):
        model([1.0, 2.0])


@pytest.mark.parametrize(
    "change", [lambda m: m.to("cpu"), lambda m: m.half(), lambda m: m.double(), lambda m: nn.Sequential(m).float()]
)
def test_moving_or_converting_a_wrapped_model_is_refused(change):
    with pytest.raises(wl.UsageError, match=r"stays on cpu, cpu .* before it is wrapped"):
        change(wl.torch.DataParallel(mlp(), CPUS))


@pytest.mark.parametrize("row", [0, 5], ids=["first", "last"])
def test_an_error_in_a_replica_arrives_as_it_is_and_names_the_device(row):
    class Picky(nn.Linear):
        def forward(self, x):
            if (x == 13).any():
                raise KeyError("thirteen")
            return super().forward(x)

    model = wl.torch.DataParallel(Picky(6, 4), ["cpu"] * 3)
    x, _ = batch(6)
    x[row] = 13
    with pytest.raises(KeyError, match="thirteen") as caught:
        model(x)
    assert caught.value.__notes__ == [f"raised on cpu, device {1 if row == 0 else 3} of 3"]
    assert model(batch(6)[0]).shape == (6, 4)  # and it goes on


def test_an_error_in_backward_arrives():
    model = wl.torch.DataParallel(mlp(), CPUS)

    def refuse(*_):
        raise LookupError("no gradient today")

    model.replicas[1][1].register_full_backward_hook(refuse)
    with pytest.raises(LookupError, match="no gradient today"):
        model(batch(4)[0]).sum().backward()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda x: x if x[0] == 0 else (x,), "different things"),
        (lambda x: [x] * int(x[0] + 1), "sequences of different lengths"),
        (lambda x: {f"row {x[0]:.0f}": x}, "dicts with different keys"),
        (lambda x: float(x[0]), "different values, .* only tensors can be joined"),
    ],
)
def test_outputs_that_cannot_be_joined_are_refused(answer, said):
    class Odd(nn.Module):
        def forward(self, x):
            return answer(x)

    with pytest.raises(wl.UsageError, match=said):
        wl.torch.DataParallel(Odd(), CPUS)(torch.arange(4.0))
