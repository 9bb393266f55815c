"""A DataParallel model trains as the plain one does, behind the same face."""

from __future__ import annotations

import copy
import dataclasses
import io
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import windlass as wl
from tests.torch_devices.models import STRATEGIES, batch, close, mlp, normed, train

CPUS = ["cpu"] * 2


@pytest.mark.parametrize(
    ("strategy", "count"), [("auto", 1), *((strategy, count) for strategy in STRATEGIES for count in (2, 3))]
)
def test_training_gives_the_parameters_of_one_device(strategy, count):
    plain, model = mlp(), wl.torch.DataParallel(mlp(), ["cpu"] * count, strategy=strategy)
    losses = train(plain, steps=50, size=13)
    assert train(model, steps=50, size=13) == pytest.approx(losses, rel=1e-4)
    close(model, plain)
    assert losses[-1] != losses[0]


@settings(deadline=None, max_examples=30)
@given(size=st.integers(1, 40), count=st.integers(1, 6), strategy=st.sampled_from(STRATEGIES))
def test_any_batch_on_any_number_of_devices_has_the_outputs_and_gradients_of_one(size, count, strategy):
    plain, model = mlp(), wl.torch.DataParallel(mlp(), ["cpu"] * count, strategy=strategy)
    x, y = batch(size)
    if size < count:
        with pytest.raises(wl.UsageError, match=rf"batch of {size} .* {count} devices"):
            model(x)
        return
    rows = []
    for replica in model.replicas:
        replica[0].register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    found, expected = model(x), plain(x)
    assert sum(rows) == size
    assert max(rows) - min(rows) <= 1
    torch.testing.assert_close(found, expected)
    functional.cross_entropy(found, y).backward()
    functional.cross_entropy(expected, y).backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_gradients_of_several_backwards_add_up():
    plain, model = mlp(), wl.torch.DataParallel(mlp(), CPUS)
    for each in (plain, model):
        for seed in range(3):
            x, y = batch(8, seed)
            functional.cross_entropy(each(x), y).backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_two_forwards_may_share_one_backward():
    plain, model = mlp(), wl.torch.DataParallel(mlp(), CPUS)
    for each in (plain, model):
        (each(batch(4)[0]).square().mean() + each(batch(7, seed=5)[0]).square().mean()).backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_parameter_that_no_replica_used_has_no_gradient_and_calls_no_hook():
    class Forked(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x):
            return self.used(x)

    model, called = wl.torch.DataParallel(Forked(), CPUS), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: called.append(name))
    model(batch(4)[0]).sum().backward()
    assert sorted(called) == ["used.bias", "used.weight"]
    assert model.unused.weight.grad is None


@pytest.mark.parametrize("strategy", ["auto", "ring"])
@pytest.mark.parametrize("lucky", [0.0, 3.0], ids=["first device", "second device"])
def test_a_parameter_that_one_replica_alone_used_has_that_gradient(strategy, lucky):
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.shift = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x * self.scale if x[0].item() == lucky else x + self.shift

    model = wl.torch.DataParallel(Sometimes(), CPUS, strategy=strategy)
    model(torch.tensor([0.0, 1.0, 3.0, 4.0])).sum().backward()
    assert model.module.scale.grad.item() == (1.0 if lucky == 0.0 else 7.0)
    assert model.module.shift.grad.item() == 2.0


def test_frozen_parameters_stay_as_they_are_also_when_frozen_after_wrapping():
    plain, model = mlp(), wl.torch.DataParallel(mlp(), CPUS)
    before = copy.deepcopy(plain[0].weight)
    for each in (plain, model):
        each.get_submodule("0").requires_grad_(False)
        train(each, steps=5, size=8)
    close(model, plain)
    assert torch.equal(model.get_submodule("0").weight, before)
    assert model.get_submodule("0").weight.grad is None


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.there = nn.Linear(6, 6, bias=False)
            self.back = nn.Linear(6, 6, bias=False)
            self.back.weight = self.there.weight

        def forward(self, x):
            return self.back(torch.tanh(self.there(x)))[:, :4]

    plain, model = Tied(), wl.torch.DataParallel(Tied(), CPUS)
    train(plain, steps=10, size=8)
    train(model, steps=10, size=8)
    assert len(list(model.parameters())) == 1
    close(model, plain)


def test_recurrent_layers_and_sparse_and_shared_gradients_work():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Embedding(10, 3, sparse=True)
            self.read = nn.LSTM(3, 4, batch_first=True)
            self.one, self.two = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))

        def forward(self, ids):
            _, (last, _) = self.read(self.embed(ids))
            return last[0] + (self.one + self.two)  # autograd gives both the same gradient memory

    plain = Reader()
    model = wl.torch.DataParallel(Reader(), CPUS, strategy="ring")
    ids = torch.arange(20).reshape(4, 5) % 10
    for each in (plain, model):
        each(ids).square().sum().backward()
    assert model.embed.weight.grad.is_sparse
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.to_dense(), theirs.grad.to_dense())


def test_parameters_may_be_written_by_anyone_in_any_way():
    plain, model = mlp(), wl.torch.DataParallel(mlp(), CPUS)
    weight = model.get_submodule("0").weight
    with torch.no_grad():
        plain[0].weight.mul_(2)
        plain[2].bias.add_(1)
    weight.detach().numpy()[:] *= 2  # memory that a store fills, of which torch knows nothing
    bias = model.get_submodule("2").bias
    bias.data = bias.data + 1  # other memory under the same parameter
    x, _ = batch(6)
    torch.testing.assert_close(model(x), plain(x))


# --- hooks, modes, other ways to differentiate ----------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["auto", "sharded"])
def test_hooks_see_the_sum_over_devices_once(strategy):
    plain, model = mlp(), wl.torch.DataParallel(mlp(), CPUS, strategy=strategy)
    x, y = batch(8)
    functional.cross_entropy(plain(x), y).backward()
    called = []
    for name, parameter in model.named_parameters():

        def seen(parameter, name=name):
            torch.testing.assert_close(parameter.grad, plain.get_parameter(name).grad)
            called.append(name)

        parameter.register_post_accumulate_grad_hook(seen)
        parameter.register_hook(lambda grad, name=name: called.append(name) or grad)
    functional.cross_entropy(model(x), y).backward()
    assert sorted(called) == ["0.bias", "0.bias", "0.weight", "0.weight", "2.bias", "2.bias", "2.weight", "2.weight"]


@pytest.mark.parametrize("warm", [False, True], ids=["the first step", "after an error"])
def test_a_layers_sum_is_ready_before_backward_comes_to_the_layers_below(warm):
    layers = 6
    blocks = [nn.Sequential(nn.Linear(6, 6), *(nn.Tanh() for _ in range(4))) for _ in range(layers)]
    model = wl.torch.DataParallel(nn.Sequential(*blocks), ["cpu"] * 3)
    events = []
    for replica in model.replicas:
        for number, block in enumerate(replica):
            block.register_full_backward_hook(lambda *_, number=number: events.append(("replica", number)))
    for name, parameter in model.named_parameters():
        number = int(name.split(".")[0])
        parameter.register_post_accumulate_grad_hook(lambda _, number=number: events.append(("sum", number)))

    def step():
        events.clear()
        model(batch(9)[0].requires_grad_()).sum().backward()

    def run():
        if warm:
            failing = model.replicas[1][3].register_forward_pre_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                step()
            failing.remove()
        step()

    thread = threading.Thread(target=run)  # torch numbers what a thread records from 0: as in a new process
    thread.start()
    thread.join()
    for number in range(layers - 1):
        first_below = events.index(("replica", number))
        assert {("sum", above) for above in range(number + 1, layers)} <= set(events[:first_below]), events


@pytest.mark.parametrize("strategy", ["auto", "ring"])
def test_autograd_grad_and_second_derivatives_are_the_plain_models(strategy):
    plain, model = mlp(), wl.torch.DataParallel(mlp(), CPUS, strategy=strategy)
    x, y = batch(8)
    found = []
    for each in (plain, model):
        grads = torch.autograd.grad(functional.cross_entropy(each(x), y), list(each.parameters()), create_graph=True)
        sum(grad.square().sum() for grad in grads).backward()
        found.append([*grads, *(parameter.grad for parameter in each.parameters())])
    for theirs, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_complex_and_rarely_used_sparse_parameters_have_the_plain_models_gradients():
    class Rare(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.turn = nn.Parameter(torch.randn(4, dtype=torch.complex64))
            self.rows = nn.Embedding(5, 4, sparse=True)

        def forward(self, ids):
            out = self.turn.abs().expand(len(ids), 4)
            return out + self.rows(ids) if ids.max() > 2 else out

    plain, model = Rare(), wl.torch.DataParallel(Rare(), ["cpu"] * 4, strategy="ring")
    parts = [torch.tensor([row]) for row in (0, 4, 1, 3)]
    torch.cat([plain(part) for part in parts]).square().sum().backward()
    model(torch.cat(parts)).square().sum().backward()
    torch.testing.assert_close(model.turn.grad, plain.turn.grad)
    assert model.rows.weight.grad.is_sparse
    torch.testing.assert_close(model.rows.weight.grad.to_dense(), plain.rows.weight.grad.to_dense())


def test_replicas_on_one_device_share_the_parameters_memory():
    model = wl.torch.DataParallel(mlp(), CPUS)
    assert all(mine is theirs for mine, theirs in zip(*(each.parameters() for each in model.replicas), strict=True))


def test_gradients_reach_the_inputs():
    plain, model = mlp(), wl.torch.DataParallel(mlp(), CPUS)
    one, two = batch(5)[0].requires_grad_(), batch(5)[0].requires_grad_()
    plain(one).square().sum().backward()
    model(two).square().sum().backward()
    torch.testing.assert_close(two.grad, one.grad)


def test_a_parameter_stepped_between_forward_and_backward_is_an_error_as_in_torch():
    model = wl.torch.DataParallel(mlp(), CPUS)
    loss = model(batch(4)[0]).square().sum()
    with torch.no_grad():
        model.get_submodule("2").weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradient_mode_autocast_and_inference_mode_reach_every_replica():
    model, modes = wl.torch.DataParallel(mlp(), ["cpu"] * 3), []

    def look(*_):
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))

    for replica in model.replicas:
        replica.register_forward_pre_hook(look)
    x, _ = batch(6)
    with torch.no_grad():
        assert not model(x).requires_grad
    with torch.inference_mode():
        assert model(x).is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    assert model(x).requires_grad
    assert (
        modes
        == [(False, False, False)] * 3
        + [(False, True, False)] * 3
        + [(True, False, True)] * 3
        + [(True, False, False)] * 3
    )


def test_a_bfloat16_model_adds_up_in_float32():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))

        def forward(self, x):
            return x * self.weight

    model = wl.torch.DataParallel(Scale(), ["cpu"] * 3)
    model(torch.tensor([256.0, 1.0, 1.0], dtype=torch.bfloat16)).float().sum().backward()
    assert model.module.weight.grad.item() == 258  # in bfloat16, 256 + 1 is 256


def test_replicas_run_at_the_same_time():
    meet = threading.Barrier(3)

    class Meeting(nn.Module):
        def forward(self, x):
            meet.wait(timeout=20)
            return x

    assert len(wl.torch.DataParallel(Meeting(), ["cpu"] * 3)(torch.zeros(3))) == 3


def test_replicas_share_the_cores_and_leave_the_callers_threads_alone():
    found = []

    class Counting(nn.Module):
        def forward(self, x):
            found.append(torch.get_num_threads())
            return x

    torch.set_num_threads(4)
    try:
        wl.torch.DataParallel(Counting(), CPUS)(torch.zeros(2))
        found.append(torch.get_num_threads())
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(1)
    assert found == [2, 2, 4, 4]


def test_deterministic_algorithms_make_dropout_repeat():
    model = wl.torch.DataParallel(nn.Dropout(0.5), ["cpu"] * 4)
    outputs = []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(20):
            torch.manual_seed(0)
            outputs.append(model(torch.ones(64, 50)))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(each, outputs[0]) for each in outputs)


# --- buffers --------------------------------------------------------------------------------------------------------


def test_batch_norm_statistics_are_kept_per_device_and_normalise_its_own_part():
    model = wl.torch.DataParallel(normed(), CPUS)
    x, _ = batch(9)
    parts = torch.tensor_split(x, 2)
    alone = [normed() for _ in parts]
    found = model(x)
    torch.testing.assert_close(found, torch.cat([each(part) for each, part in zip(alone, parts, strict=True)]))
    for replica, expected in zip(model.replicas, alone, strict=True):
        torch.testing.assert_close(replica[1].running_mean, expected[1].running_mean)
        torch.testing.assert_close(replica[1].running_var, expected[1].running_var)
        assert replica[1].num_batches_tracked.item() == 1
    assert not torch.allclose(model.replicas[0][1].running_mean, model.replicas[1][1].running_mean)


def test_in_eval_mode_every_device_uses_what_state_dict_holds_and_changes_nothing():
    model = wl.torch.DataParallel(normed(), CPUS)
    train(model, steps=5, size=8)
    plain = normed()
    plain.load_state_dict(model.state_dict())
    second = model.replicas[1][1].running_mean.clone()
    x, _ = batch(7)
    torch.testing.assert_close(model.eval()(x), plain.eval()(x))
    assert torch.equal(model.replicas[1][1].running_mean, second)
    model.train()(x)
    assert not torch.equal(model.replicas[1][1].running_mean, second)


def test_a_layer_put_into_eval_mode_alone_is_in_eval_mode_on_every_device():
    plain, model = normed(), wl.torch.DataParallel(normed(), CPUS)
    for each in (plain, model):
        each.get_submodule("1").eval()
    x, _ = batch(8)
    torch.testing.assert_close(model(x), plain(x))
    assert model.replicas[1][1].num_batches_tracked.item() == 0
    assert model.training


def test_loading_gives_every_device_the_statistics():
    model = wl.torch.DataParallel(normed(), CPUS)
    plain = normed(seed=3)
    train(plain, steps=3, size=8)
    model.load_state_dict(plain.state_dict())
    for replica in model.replicas:
        torch.testing.assert_close(replica[1].running_mean, plain[1].running_mean)
    close(model, plain)


# --- the face of the plain model ------------------------------------------------------------------------------------


def test_names_are_the_plain_models_also_inside_another_module():
    plain, model = normed(), wl.torch.DataParallel(normed(), CPUS)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in model.named_buffers()] == [name for name, _ in plain.named_buffers()]
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
    outer = nn.Sequential(model, nn.Identity())
    plain_outer = nn.Sequential(normed(seed=4), nn.Identity())
    assert list(outer.state_dict()) == list(plain_outer.state_dict())
    outer.load_state_dict(plain_outer.state_dict())
    close(outer, plain_outer)


def test_a_model_without_children_and_with_a_state_of_its_own_keeps_both():
    class Counted(nn.Linear):
        seen = 0

        def get_extra_state(self):
            return {"seen": self.seen}

        def set_extra_state(self, state):
            self.seen = state["seen"]

    linear = Counted(6, 4)
    linear.seen = 7
    model = wl.torch.DataParallel(linear, CPUS)
    assert list(model.state_dict()) == ["weight", "bias", "_extra_state"]
    fresh = wl.torch.DataParallel(Counted(6, 4), CPUS)
    fresh.load_state_dict(model.state_dict())
    assert fresh.module.seen == 7
    close(fresh, model)


def test_a_copy_and_a_saved_model_train_on_alone():
    model = wl.torch.DataParallel(normed(), CPUS)
    train(model, steps=2, size=8)
    before = copy.deepcopy(model.state_dict())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    others = [copy.deepcopy(model), torch.load(file, weights_only=False)]
    train(model, steps=3, size=8)
    for other in others:
        assert all(torch.equal(other.state_dict()[name], before[name]) for name in before)
        train(other, steps=3, size=8)
        close(other, model)
        torch.testing.assert_close(other.replicas[1][1].running_mean, model.replicas[1][1].running_mean)


def test_arguments_are_split_and_outputs_joined_in_any_structure():
    class Structured(nn.Module):
        def forward(self, x, pair, *, mask, scale, name):
            assert len(x) == len(pair[0]) == len(pair[1]["deep"]) == len(mask)
            y = x * scale
            return {"y": y, "both": (y + 1, [mask]), "name": name, "loss": y.sum(), "none": None}

    model = wl.torch.DataParallel(Structured(), CPUS)
    x = torch.arange(5.0)
    out = model(x, (x + 1, {"deep": x}), mask=x > 2, scale=torch.tensor(2.0), name="n")
    assert torch.equal(out["y"], x * 2)
    assert torch.equal(out["both"][0], x * 2 + 1)
    assert torch.equal(out["both"][1][0], x > 2)
    assert (out["name"], out["none"]) == ("n", None)
    assert out["loss"].tolist() == [6.0, 14.0]  # one number for each device


def test_the_repr_names_devices_and_strategy():
    assert "devices=[cpu, cpu], strategy='ring'" in repr(wl.torch.DataParallel(mlp(), CPUS, strategy="ring"))


@dataclasses.dataclass(frozen=True)
class Seen:
    loss: torch.Tensor
    rows: torch.Tensor
    note: str = "as it is"


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0


def test_dataclasses_go_in_and_come_out_field_by_field():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, batch):
            rows = self.layer(batch.x) * batch.scale
            return Seen(rows.mean(), rows)

    model = Model()
    batch = Batch(torch.arange(10.0).reshape(5, 2))
    seen = wl.torch.DataParallel(model, ["cpu"] * 2)(batch)
    assert isinstance(seen, Seen)
    assert seen.note == "as it is"
    torch.testing.assert_close(seen.rows, model(batch).rows)
    assert seen.loss.shape == (2,)
