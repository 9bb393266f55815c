"""Training through the store gives what the plain loop gives, whatever the script does with its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import windlass as wl

from .problem import BATCH, Net, assert_close, batches, loss_of, share, values

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.001, maximize=True),
}
MODES = ("store", "allreduce")


def simple(store, make, mode="store", between=None, schedule=None, steps=8):
    """A training loop; the plain one without a store."""
    model = Net(seed=0 if store is None else store.rank)
    optimizer = make(model.parameters())
    if store is not None:
        optimizer = wl.torch.Optimizer(optimizer, store, mode=mode, named_parameters=model.named_parameters())
    scheduler = schedule(optimizer) if schedule else None
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss_of(model, *share(store, x, y)).backward()
        if between is not None:
            between(model, optimizer)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return values(model), repr(optimizer)


def assert_same_as_one_process(cluster, *args, **kwargs):
    want, _ = simple(None, *args, **kwargs)
    results = cluster.run(simple, *args, **kwargs)
    for got, _ in results:
        assert_close(got, want)
        for name in got:
            assert torch.equal(got[name], results[0][0][name])
    return results[0][1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_steps_as_in_one_process(two, optimizer, mode):
    assert_same_as_one_process(two, OPTIMIZERS[optimizer], mode)


@pytest.mark.parametrize("mode", MODES)
def test_three_workers_step_as_one_process(three, mode):
    assert_same_as_one_process(three, OPTIMIZERS["nesterov"], mode)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_clipped_by_their_global_norm_are_those_of_the_mean(two, mode):
    def clip(model, optimizer):
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    shown = assert_same_as_one_process(two, OPTIMIZERS["adam"], mode, clip)
    assert mode == "allreduce" or "averaged" in shown


@pytest.mark.parametrize("mode", MODES)
def test_clipping_may_begin_to_change_gradients_after_the_first_steps(two, mode):
    calls = {}

    def clip(model, optimizer):
        calls[id(model)] = calls.get(id(model), 0) + 1
        nn.utils.clip_grad_norm_(model.parameters(), 100.0 if calls[id(model)] <= 3 else 0.05)

    shown = assert_same_as_one_process(two, OPTIMIZERS["adam"], mode, clip)
    assert mode == "allreduce" or "averaged" in shown


def test_untouched_gradients_leave_during_backward(two):
    assert "early" in assert_same_as_one_process(two, OPTIMIZERS["sgd"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        ("nesterov", lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)),
        ("nesterov", lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20)),
        ("adamw", lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20)),
        ("rmsprop", lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step))),
    ],
)
def test_schedules_of_learning_rate_momentum_and_betas_travel_with_the_pushes(two, optimizer, schedule, mode):
    assert_same_as_one_process(two, OPTIMIZERS[optimizer], mode, None, schedule)


@pytest.mark.parametrize("mode", MODES)
def test_parameter_groups_keep_their_own_numbers(two, mode):
    def make(parameters):
        parameters = list(parameters)
        return torch.optim.AdamW(
            [{"params": parameters[:1], "weight_decay": 0.1}, {"params": parameters[1:], "lr": 0.001}], lr=0.01
        )

    assert_same_as_one_process(two, make, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_learning_rate_set_by_hand_before_each_step_counts_for_that_step(two, mode):
    def set_rate(model, optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= 0.8

    assert_same_as_one_process(two, OPTIMIZERS["adam"], mode, set_rate)


def accumulate(store, passes_of_step, mode="store", is_quiet=False, clips=False):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if store is not None:
        optimizer = wl.torch.Optimizer(optimizer, store, mode=mode)
    data = iter(batches(sum(passes_of_step)))
    for passes in passes_of_step:
        optimizer.zero_grad()
        for index in range(passes):
            x, y = share(store, *next(data))
            if is_quiet and store is not None and index < passes - 1:
                with optimizer.no_sync():
                    loss_of(model, x, y).backward()
            else:
                loss_of(model, x, y).backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return values(model)


@pytest.mark.parametrize("clips", [False, True], ids=["plain", "clipped"])
@pytest.mark.parametrize("is_quiet", [False, True], ids=["unmarked", "no_sync"])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_accumulate_over_several_backwards(two, mode, is_quiet, clips):
    passes = [3, 3, 3, 2] if not is_quiet or clips or mode == "allreduce" else [3, 3, 3, 4]
    want = accumulate(None, passes, clips=clips)
    for got in two.run(accumulate, passes, mode, is_quiet, clips):
        assert_close(got, want)


def test_more_backwards_than_in_the_first_step_are_an_error_that_says_what_to_do(two):
    with pytest.raises(wl.UsageError, match=r"worker-\d: another gradient of '0.3' came after it had left.*no_sync"):
        two.run(accumulate, [1, 1, 2])


@pytest.mark.parametrize("mode", MODES)
def test_grad_scaler_skips_the_step_in_every_worker_when_one_has_infinite_gradients(two, mode):
    def train(store):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if store is not None:
            optimizer = wl.torch.Optimizer(optimizer, store, mode=mode)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        for step, (x, y) in enumerate(batches(6)):
            x, y = share(store, x, y)
            if step == 2 and (store is None or store.rank == 1):
                x = x * float("inf")
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x, y)).backward()
            scaler.step(optimizer)
            scaler.update()
        return values(model), scaler.get_scale()

    want, scale = train(None)
    for got, got_scale in two.run(train):
        assert_close(got, want)
        assert got_scale == scale


@pytest.mark.parametrize("mode", MODES)
def test_bfloat16_parameters_train(two, mode):
    def train(store):
        model = Net(dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if store is not None:
            optimizer = wl.torch.Optimizer(optimizer, store, mode=mode)
        for x, y in batches(6, torch.bfloat16):
            optimizer.zero_grad()
            loss_of(model, *share(store, x, y)).backward()
            optimizer.step()
        return values(model)

    want = train(None)
    for got in two.run(train):
        for name in want:
            assert got[name].dtype == torch.bfloat16
            torch.testing.assert_close(got[name], want[name], atol=0.02, rtol=0.02)


@pytest.mark.parametrize("mode", MODES)
def test_devices_reduce_first_and_one_push_leaves_per_worker(two, mode):
    def train(store):
        model = Net(seed=0 if store is None else store.rank)
        if store is not None:
            model = wl.torch.DataParallel(model, devices=["cpu", "cpu"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if store is not None:
            optimizer = wl.torch.Optimizer(optimizer, store, mode=mode, name=f"devices-{mode}")
        for x, y in batches(5):
            optimizer.zero_grad()
            loss_of(model, *share(store, x, y)).backward()
            optimizer.step()
        ours = [] if store is None else [key for key in sorted(store.keys()) if key.startswith(f"devices-{mode}/")]
        return values(model), [store.version(key) for key in ours]

    want, _ = train(None)
    for got, versions in two.run(train):
        assert_close(got, want)
        assert versions
        assert all(version == 5 for version in versions)


def test_a_closure_is_run_and_its_loss_returned(two):
    def train(store):
        model = Net()
        optimizer = wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), store)
        losses = []
        for x, y in batches(3):
            x, y = share(store, x, y)

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = loss_of(model, x, y)
                loss.backward()
                return loss

            losses.append(float(optimizer.step(closure).detach()))
        return losses

    assert all(len(losses) == 3 and losses[0] > 0 for losses in two.run(train))


def test_lbfgs_which_calls_its_closure_many_times_runs_in_every_worker(two):
    def train(store):
        model = Net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        if store is not None:
            optimizer = wl.torch.Optimizer(optimizer, store, mode="allreduce")
        x, y = batches(1)[0]

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, *share(store, x, y))
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return values(model)

    want = train(None)
    for got in two.run(train):
        assert_close(got, want, atol=1e-3)  # what it decides by the loss, it decides by each worker's own


def test_two_deterministic_runs_are_the_same_bit_for_bit():
    def train(store):
        model = Net()
        optimizer = wl.torch.Optimizer(torch.optim.Adam(model.parameters(), lr=0.01), store)
        for x, y in batches(10):
            optimizer.zero_grad()
            loss_of(model, *share(store, x, y)).backward()
            optimizer.step()
        return values(model)

    runs = []
    for _ in range(2):
        with wl.Cluster(engine="threads", servers=2, workers=3, deterministic=True) as cluster:
            runs.append(cluster.run(train)[0])
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_real_processes_train_as_one(two):
    want, _ = simple(None, OPTIMIZERS["nesterov"])
    with wl.Cluster(servers=2, workers=2) as cluster:
        for got, _ in cluster.run(simple, OPTIMIZERS["nesterov"]):
            assert_close(got, want)


def test_an_embedded_store_is_one_worker():
    with wl.Store() as store:
        assert BATCH
        got, _ = simple(store, OPTIMIZERS["adam"])
    assert_close(got, simple(None, OPTIMIZERS["adam"])[0])


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_may_be_zeroed_in_place(two, mode, set_to_none):
    def train(store):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if store is not None:
            optimizer = wl.torch.Optimizer(optimizer, store, mode=mode)
        for x, y in batches(5):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss_of(model, *share(store, x, y)).backward()
            optimizer.step()
        return values(model)

    want = train(None)
    for got in two.run(train):
        assert_close(got, want)


def test_gradients_edited_through_data_are_the_edited_ones(two):
    def clamp(model, optimizer):
        for parameter in model.parameters():
            parameter.grad.data.clamp_(-0.01, 0.01)

    assert "averaged" in assert_same_as_one_process(two, OPTIMIZERS["nesterov"], "store", clamp)


@pytest.mark.parametrize("mode", MODES)
def test_a_gan_trains_with_two_optimizers_though_one_backward_reaches_both(two, mode):
    def train(store):
        nets = {name: Net(seed=seed) for name, seed in (("maker", 1), ("judge", 2))}
        nets["maker"].second = nn.Linear(16, 6)
        with torch.no_grad():
            for parameter in nets["maker"].second.parameters():
                parameter.fill_(0.1)
        optimizers = {name: torch.optim.SGD(net.parameters(), lr=0.05) for name, net in nets.items()}
        if store is not None:
            optimizers = {
                name: wl.torch.Optimizer(one, store, mode=mode, name=f"{name}-{mode}")
                for name, one in optimizers.items()
            }
        for x, _ in batches(6):
            x, _ = share(store, x, torch.zeros(BATCH))
            fake = nets["maker"](x)
            optimizers["judge"].zero_grad()
            (nets["judge"](x).mean() - nets["judge"](fake.detach()).square().mean()).backward()
            optimizers["judge"].step()
            optimizers["maker"].zero_grad()
            nets["judge"](fake).square().mean().backward()
            optimizers["maker"].step()
        return values(nets["maker"]) | {f"judge.{name}": value for name, value in values(nets["judge"]).items()}

    want = train(None)
    for got in two.run(train):
        assert_close(got, want)


def test_state_that_the_optimizer_has_gathered_before_goes_with_it(two):
    def train(store):
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for index, (x, y) in enumerate(batches(8)):
            if index == 4 and store is not None:
                optimizer = wl.torch.Optimizer(optimizer, store)
            optimizer.zero_grad()
            loss_of(model, *(share(store, x, y) if index >= 4 else (x, y))).backward()
            optimizer.step()
        return values(model)

    want = train(None)
    for got in two.run(train):
        assert_close(got, want)
