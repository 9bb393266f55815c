"""All-reduce over devices of one process: what it refuses, what it leaves alone, where it aggregates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import windlass as wl
from tests.collectives.cases import PRODUCT, STRATEGIES
from windlass.collectives.devices import spread
from windlass.collectives.holders import HostHolder, device_holder, holder_of
from windlass.collectives.tensors import kind_of


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_device_ends_with_the_very_same_bits(strategy):
    tensors = [torch.randn(1001, generator=torch.Generator().manual_seed(i)) for i in range(6)]
    right = torch.stack(tensors).double().sum(0)
    assert wl.allreduce(tensors, strategy) is tensors
    assert all(torch.equal(each, tensors[0]) for each in tensors)
    torch.testing.assert_close(tensors[0].double(), right, rtol=1e-5, atol=1e-5)


def test_gradients_that_autograd_watches_are_reduced_in_place():
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    for factor, weight in enumerate(weights, start=1):
        (weight * factor).sum().backward()
    wl.allreduce([weight.grad for weight in weights], reduce="mean")
    assert weights[0].grad.tolist() == weights[1].grad.tolist() == [1.5] * 3
    wl.allreduce(weights, "ring")
    assert weights[0].tolist() == [2.0] * 3
    assert weights[0].requires_grad


def test_sixteen_bit_floats_are_added_up_in_float32():
    tensors = [torch.full((4,), value, dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0, 1.0, 1.0)]
    wl.allreduce(tensors, "ring")
    assert tensors[0].tolist() == [260.0] * 4  # one by one in bfloat16 it stays 256
    halves = [np.full(4, 60000, np.float16), np.full(4, 60000, np.float16), np.full(4, -60000, np.float16)]
    wl.allreduce(halves, "tree")
    assert halves[2].tolist() == [60000.0] * 4  # not infinity


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nan_is_handed_on_by_min_and_max(strategy):
    for reduce in ("min", "max", "sum"):
        arrays = [np.array([1.0, 2.0]), np.array([np.nan, 3.0]), np.array([0.0, 1.0])]
        wl.allreduce(arrays, strategy, reduce)
        assert np.isnan(arrays[2][0])
        assert not np.isnan(arrays[2][1])


@pytest.mark.parametrize(
    ("tensors", "options", "said"),
    [
        ([], {}, "one tensor per device, and it is empty"),
        (np.zeros((2, 3)), {}, "one tensor per device, got ndarray"),
        ([np.zeros(3), np.zeros(4)], {}, "tensor 1 is float64 of shape \\(4,\\), tensor 0 is float64 of shape"),
        ([np.zeros(3), torch.zeros(3)], {}, "tensor 1 is float32 of shape \\(3,\\), tensor 0 is float64"),
        ([np.zeros(3), [1.0, 2.0, 3.0]], {}, "tensor 1: expected a torch tensor or a numpy array, .* got list"),
        ([np.zeros(3, complex)] * 2, {}, "expected a dtype among .*, got complex128"),
        ([np.zeros(3), np.zeros(3)], {"strategy": "star"}, "strategy expects one of 'auto', 'root'"),
        ([np.zeros(3), np.zeros(3)], {"reduce": "median"}, "reduce= one of .*, got 'median'"),
        ([np.zeros(3), np.zeros(3)], {"reduce": 3}, "reduce expects one of 'sum', 'mean'.* got int"),
        ([np.zeros(3, int), np.zeros(3, int)], {"reduce": "mean"}, "'mean' needs a floating-point tensor, got int64"),
        ([np.zeros(3, bool), np.zeros(3, bool)], {}, "a sum of bool values does not fit a bool"),
        ([np.zeros(3), np.zeros(3)], {"reduce": "any"}, "'any' needs a bool tensor, got float64"),
        ([np.zeros(3), np.zeros(3)], {"strategy": "hierarchical", "machines": [[0]]}, "every rank below 2"),
    ],
)
def test_what_cannot_be_reduced_is_told(tensors, options, said):
    with pytest.raises(wl.UsageError, match=said):
        wl.allreduce(tensors, **options)


def test_read_only_sparse_and_shared_memory_is_refused():
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    with pytest.raises(wl.UsageError, match="tensor 1: expected a writable array, got a read-only one"):
        wl.allreduce([np.zeros(3), fixed])
    with pytest.raises(wl.UsageError, match=r"expected a dense tensor, got layout torch.sparse_coo"):
        wl.allreduce([torch.zeros(3).to_sparse(), torch.zeros(3)])
    same = torch.zeros(3)
    with pytest.raises(wl.UsageError, match="tensors 0 and 2 are the same memory"):
        wl.allreduce([same, torch.zeros(3), same])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_many_tensors_are_reduced_each_with_its_own_kind(strategy):
    sizes = [5, 0, 300, 1, 12]
    gradients = [[torch.full((size,), float(d + 1)) for d in range(3)] for size in sizes]
    gradients.append([np.full((2, 2), d, np.int64) for d in range(3)])
    wl.allreduce_many(gradients, strategy)
    assert all((each == 6).all() for parameter in gradients[:-1] for each in parameter)
    assert all((each == 3).all() for each in gradients[-1])


def test_many_tensors_are_checked_before_any_is_touched():
    first = [torch.ones(3), torch.ones(3)]
    with pytest.raises(wl.UsageError, match="tensor 0 is on 2 devices, tensor 1 on 3"):
        wl.allreduce_many([first, [torch.ones(3) for _ in range(3)]])
    with pytest.raises(wl.UsageError, match="allreduce_many of tensor 1: tensor 1 is float32 of shape"):
        wl.allreduce_many([first, [torch.ones(3), torch.ones(4)]])
    assert first[0].tolist() == [1.0] * 3
    assert wl.allreduce_many([]) == []


@given(sizes=st.lists(st.integers(0, 1000), max_size=30), devices=st.integers(1, 6))
def test_parameters_are_spread_over_the_devices_evenly(sizes, devices):
    homes = spread(sizes, devices)
    loads = [sum(size for size, home in zip(sizes, homes, strict=True) if home == d) for d in range(devices)]
    assert max(loads, default=0) <= sum(sizes) / devices + max(sizes, default=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max", "any", "all", PRODUCT])
def test_torch_on_a_device_computes_what_numpy_does_in_main_memory(dtype, reduce):
    # An accelerator's road, walked with a CPU tensor: here is no other device.
    reducer = reduce if isinstance(reduce, wl.Reducer) else wl.collectives.reducing.BUILT_IN[reduce]
    if (reduce in ("any", "all")) != (dtype is torch.bool) or (reduce == "mean" and not dtype.is_floating_point):
        return
    tensors = [(torch.arange(24).view(4, 6).t() % (i + 2)).to(dtype) for i in range(2)]
    kind = kind_of(tensors[0], "test")
    device = [device_holder(each.clone(), kind) for each in tensors]
    host = [holder_of(each.clone().contiguous(), kind) for each in tensors]
    assert all(isinstance(each, HostHolder) for each in host)
    for one, other in (device, host, (device[0], host[1]), (host[0], device[1])):
        one.fold(3, 20, other, reducer)
        one.copy(20, 24, other)
        if reduce == "mean":
            one.divide(5, 9, 2)
    np.testing.assert_array_equal(device[0].numbers(0, 24), host[0].numbers(0, 24))


def test_a_strided_device_tensor_of_halves_gets_its_result_back():
    tensor = torch.zeros(4, 2, dtype=torch.float16)[:, 0]
    kind = kind_of(tensor, "test")
    holder = device_holder(tensor, kind)
    holder.copy(0, 4, HostHolder(np.arange(4, dtype=np.float32)))
    assert tensor.tolist() == [0.0] * 4
    holder.finish()
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_group_of_devices_takes_a_tensor_for_each():
    with wl.Group(["cpu", "cpu"]) as group:
        assert repr(group) == "<Group rank 0 of 2 over devices of this process>"
        tensors = group.buffer((2, 2), torch.float32)
        tensors[1] += 1
        group.allreduce(tensors)
        assert tensors[0].tolist() == [[1.0, 1.0], [1.0, 1.0]]
        with pytest.raises(wl.UsageError, match="expected 2 tensors, one per device, got 1"):
            group.allreduce(tensors[:1])
        group.barrier()
    with pytest.raises(wl.UsageError, match="this group is closed"):
        group.allreduce(tensors)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_does_not_exist_is_told_when_the_group_is_made():
    with pytest.raises(wl.UsageError, match="device 'cuda:7' does not exist here"):
        wl.Group(["cpu", "cuda:7"])
    with pytest.raises(wl.UsageError, match="at least one"):
        wl.Group([])
    with pytest.raises(wl.UsageError, match=r"a Group is made over a worker's wl.Store, a torch.distributed"):
        wl.Group("everything")
