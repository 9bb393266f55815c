"""What goes wrong says so: with the worker's name, the parameter's, and what to do. Nothing hangs."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from torch import nn

import windlass as wl

from .problem import Net, batches, loss_of, share

SOON_SECONDS = 60.0  # of a timeout of 120


def start(store, model=None, **kwargs):
    model = model if model is not None else Net()
    made = wl.torch.Optimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), store, named_parameters=model.named_parameters(), **kwargs
    )
    return model, made


def one_step(store, model, optimizer, data=None):
    x, y = share(store, *(data or batches(1)[0]))
    optimizer.zero_grad()
    loss_of(model, x, y).backward()
    optimizer.step()


class Skipping(Net):
    """Leaves its last layer out when told to."""

    skips = False

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return hidden[:, :3] if self.skips else self.second(hidden)


@pytest.fixture(scope="module")
def processes():
    with wl.Cluster(servers=2, workers=2, timeout=120) as cluster:
        yield cluster


@pytest.mark.parametrize("kind", ["store", "averaged", "allreduce", "wrap"])
@pytest.mark.parametrize("when", [0, 1, 3])
@pytest.mark.parametrize("engine", ["two", "processes"])
def test_a_worker_that_skips_a_parameter_is_named_with_it(engine, when, kind, request):
    def train(store):
        model = Skipping()
        run, optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
        if kind == "wrap":
            run = wl.torch.wrap(model, store)
        else:
            mode = "allreduce" if kind == "allreduce" else "store"
            _, optimizer = start(store, model, mode=mode, overlap=kind != "averaged")
        for step in range(5):
            model.skips = step == when and store.rank == 1
            one_step(store, run, optimizer)

    wanted = r"worker-1 has no gradient of 'second\.\w+', worker-0 has one" if when == 0 else (
        r"worker-1: 'second\.\w+' got no gradient in this step, and had one in the first"
    )
    cluster = request.getfixturevalue(engine)
    began = time.monotonic()
    with pytest.raises(wl.UsageError, match=wanted):
        cluster.run(train)
    assert time.monotonic() - began < SOON_SECONDS


@pytest.mark.parametrize("consistency", [wl.Sequential(), wl.Bounded(2), wl.Eventual()], ids=str)
@pytest.mark.parametrize("is_leased", [False, True], ids=["stepping", "leased"])
def test_a_worker_that_skips_a_parameter_is_named_where_nobody_is_met(consistency, is_leased):
    def train(store):
        model = Skipping()
        model, optimizer = start(store, model)
        work = store.batches(2400, batch_size=12) if is_leased else range(8)
        for step, _ in enumerate(work):
            model.skips = step == 3 and store.rank == 1
            one_step(store, model, optimizer)
            time.sleep(0.02)  # let the other have some

    with wl.Cluster(servers=2, workers=2, consistency=consistency, timeout=120) as cluster:
        began = time.monotonic()
        with pytest.raises(wl.UsageError, match=r"worker-1: 'second\.\w+' got no gradient in this step"):
            cluster.run(train)
        assert time.monotonic() - began < SOON_SECONDS


@pytest.mark.parametrize("mode", ["store", "allreduce"])
def test_where_parameters_may_be_unused_a_worker_without_one_counts_as_zero(two, mode):
    def train(store, skips):
        model = Skipping()
        model, optimizer = start(store, model, mode=mode, find_unused_parameters=True, name=f"unused-{mode}-{skips}")
        before = model.second.weight.detach().clone()
        for step in range(3):
            model.skips = step == 1 and store.rank in skips
            one_step(store, model, optimizer)
            if step == 0:
                before = model.second.weight.detach().clone()
            if step == 1:
                moved = (model.second.weight.detach() - before).abs().max()
        return float(moved)

    full = two.run(train, ())
    half = two.run(train, (1,))
    none = two.run(train, (0, 1))
    assert full[0] > half[0] > 0
    assert half[0] == half[1]
    assert none == [0.0, 0.0]


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        (
            lambda: nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 4)),
            r"worker-1 has parameter '1.weight' of shape \(4, 16\).*worker-0 has .*\(3, 16\)",
        ),
        (
            lambda: nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 3)).double(),
            r"worker-1 has parameter '0.weight'.*float64.*worker-0 has .*float32",
        ),
        (
            lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)),
            r"worker-1 has parameter '2.weight'.*worker-0 has parameter '1.weight'",
        ),
        (
            lambda: nn.Sequential(nn.Linear(6, 16)),
            r"worker-0 has parameter '1.weight'.*which worker-1 does not have",
        ),
    ],
    ids=["shape", "dtype", "name", "count"],
)
@pytest.mark.parametrize("form", ["optimizer", "wrap"])
def test_models_that_differ_are_an_error_that_names_worker_and_parameter(two, other, wanted, form):
    def train(store):
        model = other() if store.rank == 1 else nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 3))
        if form == "wrap":
            wl.torch.wrap(model, store)
        else:
            start(store, model)

    with pytest.raises(wl.UsageError, match=wanted):
        two.run(train)


def test_options_and_optimizers_that_differ_are_an_error_that_names_them(two):
    with pytest.raises(wl.UsageError, match="worker-1 has mode='allreduce', worker-0 mode='store'"):
        two.run(lambda store: start(store, mode=("store", "allreduce")[store.rank]) and None)

    def train(store):
        kind = (torch.optim.SGD, torch.optim.Adagrad)[store.rank]
        wl.torch.Optimizer(kind(Net().parameters(), lr=0.1), store)

    with pytest.raises(wl.UsageError, match="worker-1 has optimizer='Adagrad', worker-0 optimizer='SGD'"):
        two.run(train)


def test_learning_rates_that_differ_from_the_start_are_an_error_that_shows_both(two):
    def train(store):
        model = Net()
        groups = [{"params": model.first.parameters()}, {"params": model.second.parameters(), "lr": 0.1 + store.rank}]
        wl.torch.Optimizer(torch.optim.SGD(groups, lr=0.1, momentum=0.5), store)

    with pytest.raises(wl.UsageError, match=r"^worker-1 has lr=1.1 in parameter group 1, worker-0 has lr=0.1 there\n"):
        two.run(train)


def test_groups_that_differ_in_number_are_an_error(two):
    def train(store):
        model = Net()
        parts = [[*model.parameters()]] if store.rank else [[*model.first.parameters()], [*model.second.parameters()]]
        wl.torch.Optimizer(torch.optim.SGD([{"params": part} for part in parts], lr=0.1), store)

    with pytest.raises(wl.UsageError, match="worker-1 has a different number of parameter groups: 1, worker-0 2"):
        two.run(train)


def test_learning_rates_that_differ_in_a_step_are_refused_by_the_servers(two):
    def train(store):
        model, optimizer = start(store)
        for _ in range(3):
            one_step(store, model, optimizer)
        optimizer.param_groups[0]["lr"] = 0.1 * (1 + store.rank)
        one_step(store, model, optimizer)

    with pytest.raises(wl.UsageError, match=r"hyper-parameters of round 4 .* differ: worker-0 .*, worker-1"):
        two.run(train)


def test_gradients_touched_after_they_left_are_not_ignored(two):
    def train(store):
        model, optimizer = start(store)
        for _ in range(2):
            one_step(store, model, optimizer)
        optimizer.zero_grad()
        loss_of(model, *share(store, *batches(1)[0])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    with pytest.raises(wl.UsageError, match=r"the gradient of '.*' was changed between backward\(\) and step\(\)"):
        two.run(train)


def test_a_rate_changed_after_gradients_left_is_not_ignored(two):
    def train(store):
        model, optimizer = start(store)
        for _ in range(2):
            one_step(store, model, optimizer)
        optimizer.zero_grad()
        loss_of(model, *share(store, *batches(1)[0])).backward()
        optimizer.param_groups[0]["lr"] = 0.5
        optimizer.step()

    with pytest.raises(wl.UsageError, match=r"the parameter group of '.*' was changed between backward"):
        two.run(train)


def test_what_cannot_travel_is_an_error_when_it_changes(two):
    def train(store):
        model = Net()
        optimizer = wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), store)
        one_step(store, model, optimizer)
        optimizer.param_groups[0]["momentum"] = 0.9
        one_step(store, model, optimizer)

    with pytest.raises(wl.UsageError, match=r"momentum became 0.9, but the servers were told 0.*mode='allreduce'"):
        two.run(train)


def test_a_parameter_unfrozen_later_is_not_left_behind(two):
    def train(store):
        model = Net()
        model.first.weight.requires_grad_(False)
        model, optimizer = start(store, model)
        one_step(store, model, optimizer)
        model.first.weight.requires_grad_(True)
        one_step(store, model, optimizer)

    with pytest.raises(wl.UsageError, match=r"parameter 0 of group 0, of shape \(16, 6\), has a gradient"):
        two.run(train)


def test_sparse_gradients_are_refused_by_name(two):
    def train(store):
        model = nn.Embedding(10, 4, sparse=True)
        optimizer = wl.torch.Optimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), store, named_parameters=model.named_parameters()
        )
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    with pytest.raises(wl.UsageError, match=r"the gradient of 'weight' is sparse"):
        two.run(train)


def test_step_without_backward_says_so(two):
    def train(store):
        _, optimizer = start(store)
        optimizer.step()

    with pytest.raises(wl.UsageError, match=r"without any gradient; has backward\(\) run"):
        two.run(train)


def test_an_optimizer_that_is_not_element_wise_is_sent_to_the_workers(two):
    def train(store):
        wl.torch.Optimizer(torch.optim.Adafactor(Net().parameters(), lr=0.1), store)

    with pytest.raises(wl.UsageError, match=r"mode='allreduce' runs any torch optimizer"):
        two.run(train)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda store, o: wl.torch.Optimizer("sgd", store), "expects a torch optimizer, got str"),
        (lambda store, o: wl.torch.Optimizer(o, None), "has no store"),
        (lambda store, o: wl.torch.Optimizer(o, store, mode="ring"), "mode expects 'store' or 'allreduce', got 'ring'"),
        (lambda store, o: wl.torch.Optimizer(o, store, bucket_bytes=-1), "bucket_bytes expects a whole number"),
        (lambda store, o: wl.torch.Optimizer(wl.torch.Optimizer(o, store), store), "is a wl.torch.Optimizer already"),
        (lambda store, o: wl.torch.Optimizer(o, store).add_param_group({}), "add parameter groups .* before"),
        (lambda store, o: wl.torch.wrap(o, store), "wrap expects a torch.nn.Module, got SGD"),
        (lambda store, o: wl.torch.Optimizer(o, store, named_parameters=[]), None),
        (
            lambda store, o: wl.torch.Optimizer(o, store, named_parameters=[("w", nn.Parameter(torch.ones(1)))]),
            "named_parameters has no parameter 0 of group 0",
        ),
    ],
)
def test_wrong_arguments_say_what_was_expected(make, wanted):
    with wl.Store() as store:
        optimizer = torch.optim.SGD(Net().parameters(), lr=0.1)
        if wanted is None:
            make(store, optimizer)
        else:
            with pytest.raises(wl.UsageError, match=wanted):
                make(store, optimizer)


def test_the_driver_cannot_train(two):
    with pytest.raises(wl.UsageError, match="training needs a worker's store"):
        start(two.store())


def test_allreduce_needs_sequential_consistency():
    with wl.Store(consistency=wl.Eventual()) as store, pytest.raises(wl.UsageError, match="expects Sequential"):
        start(store, mode="allreduce")


def test_an_old_graph_is_told_that_its_parameters_are_old():
    with wl.Store() as store:
        model, optimizer = start(store)
        x, y = batches(1)[0]
        for _ in range(2):
            one_step(None, model, optimizer)
        stale = loss_of(model, x, y)
        one_step(None, model, optimizer)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            stale.backward()


def test_a_grad_scaler_that_comes_later_is_not_ignored():
    with wl.Store() as store:
        model, optimizer = start(store)
        scaler = torch.amp.GradScaler("cpu")
        x, y = batches(1)[0]
        for _ in range(2):
            one_step(None, model, optimizer)
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x, y)).backward()
        scaler.unscale_(optimizer)
        with pytest.raises(wl.UsageError, match="scaled by a GradScaler that the first step did not have"):
            scaler.step(optimizer)


def test_a_new_optimizer_on_the_same_model_takes_over():
    with wl.Store() as store:
        model, first = start(store)
        one_step(None, model, first)
        model, second = start(store, model)
        for _ in range(3):
            one_step(None, model, second)
        assert store.version(next(iter(store.keys()))) == 3
        with pytest.raises(wl.UsageError, match="another of its name or on its parameters took over"):
            first.step()


@pytest.mark.parametrize("mode", ["store", "allreduce"])
@pytest.mark.parametrize("overlap", [True, False])
def test_two_backwards_over_different_layers_both_count(two, mode, overlap):
    def train(store):
        model = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if store is not None:
            optimizer = wl.torch.Optimizer(optimizer, store, mode=mode, overlap=overlap, name=f"both-{mode}-{overlap}")
        for _ in range(4):
            optimizer.zero_grad()
            for layer in model:
                layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return [parameter.tolist() for parameter in model.parameters()]

    want = train(None)
    for got in two.run(train):
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other))


@pytest.mark.parametrize("mode", ["store", "allreduce"])
def test_a_gradient_that_comes_later_by_hand_is_not_ignored(two, mode):
    def train(store):
        model = Net()
        model.register_parameter("extra", nn.Parameter(torch.ones(3)))
        model, optimizer = start(store, model, mode=mode, overlap=False, name=f"late-{mode}")
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, *share(store, *batches(1)[0])).backward()
            if step == 3:
                model.extra.grad = torch.ones(3)
            optimizer.step()

    with pytest.raises(wl.UsageError, match="'extra' has a gradient now and had none in the first step"):
        two.run(train)


def test_hooks_of_the_optimizer_inside_are_refused():
    with wl.Store() as store:
        inner = torch.optim.SGD(Net().parameters(), lr=0.1)
        inner.register_step_pre_hook(lambda *_: None)
        with pytest.raises(wl.UsageError, match="has step hooks, and with mode='store' it never steps"):
            wl.torch.Optimizer(inner, store)


def test_a_hook_that_changes_a_gradient_after_it_left_is_not_ignored():
    with wl.Store() as store:
        model = wl.torch.wrap(Net(), store)

        def halve(parameter):
            parameter.grad.mul_(0.5)

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(halve)
        x, y = batches(1)[0]
        loss_of(model, x, y).backward()
        model.zero_grad()
        with pytest.raises(wl.UsageError, match="was changed after it had left"):
            loss_of(model, x, y).backward()


def test_a_parameter_changed_by_hand_is_told_once(caplog):
    with wl.Store() as store:
        model, optimizer = start(store)
        for _ in range(3):
            one_step(None, model, optimizer)
            with torch.no_grad():
                model.first.weight.clamp_(-0.1, 0.1)
    told = [record.getMessage() for record in caplog.records if "changed by hand" in record.getMessage()]
    assert len(told) == 1
    assert "'first.weight'" in told[0]


def test_a_model_can_be_saved_whole_after_it_was_wrapped(tmp_path):
    with wl.Store() as store:
        model, optimizer = start(store)
        one_step(None, model, optimizer)
        torch.save(model, tmp_path / "model.pt")
        with pytest.raises(wl.UsageError, match="an optimizer belongs to its store"):
            copy.deepcopy(optimizer)
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(again.first.weight, model.first.weight)


@pytest.mark.parametrize("call", [wl.torch.wrap, lambda model: wl.torch.Optimizer(torch.optim.SGD(model.parameters()))])
def test_without_a_store_it_is_said_to_pass_it(two, call):
    with pytest.raises(wl.UsageError, match=r"has no store.* pass it one, wl\.torch\.\w+\(\w+, store\).*cluster\.run"):
        two.run(lambda store: call(Net()))


@pytest.mark.parametrize("kind", ["store", "allreduce", "wrap"])
def test_a_complex_parameter_is_named(two, kind):
    class Complex(Net):
        def __init__(self):
            super().__init__()
            self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def work(store):
        if kind == "wrap":
            return wl.torch.wrap(Complex(), store)
        return start(store, Complex(), mode=kind)

    with pytest.raises(wl.UsageError, match=r"parameter 'phase' is torch\.complex64, which no key of a store can hold"):
        two.run(work)


def test_a_parameter_of_no_elements_is_deleted_without_a_complaint(capfd):
    """By servers in processes of their own, whose memory is shared."""

    def train(store):
        for _ in range(2):
            model = Net()
            model.empty = nn.Parameter(torch.ones(0, 3))
            model, optimizer = start(store, model, find_unused_parameters=True)
            for _ in range(3):
                one_step(store, model, optimizer)
        return True

    with wl.Cluster(servers=1, workers=1, timeout=20) as cluster:
        assert cluster.run(train) == [True]
    assert "could not handle" not in capfd.readouterr().err
