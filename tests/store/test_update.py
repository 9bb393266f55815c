from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tests.store.slots import make_slot, push, value
from windlass.errors import UsageError
from windlass.store.update import BUILT_IN, FTRL, SGD, Adagrad, Adam, AdamW, Updater, resolve_updater, updater_rule
from windlass.store.updater import Add, Assign, Merge
from windlass.types import Array, Rule

HERE = __name__


@dataclass(frozen=True)
class SignSGD(Updater):
    lr: float = 0.5
    tags: tuple[str, ...] = ()

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        value -= self.lr * np.sign(grad)


class Unfinished(Updater):
    pass


class Undecorated(Updater):
    def __init__(self, lr: float) -> None:
        pass


@pytest.mark.parametrize(
    "updater",
    [Assign(), Merge(), Add(), SGD(lr=0.5, momentum=0.9), Adam(betas=(0.5, 0.6)), AdamW(), Adagrad(eps=1), FTRL(l1=2),
     SignSGD(lr=2.0, tags=("a",))],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_an_updater_survives_the_wire(updater: Updater) -> None:
    rule = updater_rule(updater)
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(rule), type=Rule)
    assert travelled == rule
    found = resolve_updater(travelled, {})
    assert type(found) is type(updater)
    assert updater_rule(found) == rule
    if not isinstance(updater, SignSGD):
        assert found == updater


def test_a_name_and_the_default_instance_are_the_same_declaration() -> None:
    assert updater_rule("assign") == updater_rule(Assign()) == Rule("assign")
    assert updater_rule("adam") == updater_rule(Adam())
    assert updater_rule(SignSGD()).path == f"{HERE}:SignSGD"
    assert updater_rule(f"{HERE}:SignSGD") == updater_rule(SignSGD())


def test_every_built_in_can_be_named_and_used() -> None:
    for name in BUILT_IN.keys() - {"rowwise-adagrad"}:  # which is for tables
        slot = make_slot(2, update=name)
        push(slot, np.ones(2, np.float32))
        assert value(slot).all()


def test_a_local_class_is_refused_in_a_cluster_and_registered_in_an_embedded_store() -> None:
    @dataclass(frozen=True)
    class Mine(Updater):
        lr: float = 1.0

    with pytest.raises(UsageError, match=r"the updater .*Mine has no import path: in a cluster it is named by one"):
        updater_rule(Mine())
    local: dict[str, object] = {}
    rule = updater_rule(Mine(lr=3.0), local)
    assert resolve_updater(rule, local) == Mine(lr=3.0)
    assert updater_rule(Mine(lr=3.0), local) == rule


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Rule("adm"), "expected update= one of 'assign', 'merge', .*got 'adm'"),
        (Rule("numpy:ndarray"), "'numpy:ndarray' must be a subclass of wl.Updater, found the class ndarray"),
        (Rule(f"{HERE}:HERE"), "must be a subclass of wl.Updater, found str"),
        (Rule("sgd", {"rate": 1}), "unknown option rate; known: lr, momentum, dampening, weight_decay, nesterov"),
        (Rule("sgd", {"lr": -1}), "lr must be a finite number, 0 or more"),
        (Rule("no_such_module:X"), "cannot import 'no_such_module' of 'no_such_module:X'.*installed on every node"),
    ],
)
def test_a_rule_that_names_no_updater_says_what_was_expected_and_found(rule: Rule, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        resolve_updater(rule, {})


@pytest.mark.parametrize(
    ("update", "text"),
    [
        (SGD, r"or a wl.Updater, got the class SGD; did you mean SGD\(...\)\?"),
        (torch.optim.RMSprop, r"did you mean wl.torch.Optim\(torch.optim.RMSprop, ...\)\?"),
        (torch.optim.SGD([torch.zeros(1)]), r"did you mean wl.torch.Optim\(torch.optim.SGD, ...\)\?"),
        (3, "or a wl.Updater, got int 3"),
        (SignSGD(tags=(object(),)), r"SignSGD\(tags=...\) must be a plain value .* got object"),  # type: ignore[arg-type]
        (Undecorated(1.0), r"Undecorated must be decorated with @dataclass\(frozen=True\)"),
    ],
)
def test_what_cannot_be_an_updater_is_refused(update: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        updater_rule(update)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SGD(lr=-1), r"SGD\(lr=-1\): lr must be a finite number, 0 or more"),
        (lambda: SGD(lr=float("nan")), "lr must be a finite number"),
        (lambda: SGD(lr="fast"), "lr must be a finite number"),
        (lambda: SGD(nesterov=True), "needs momentum above 0 and dampening 0, got momentum=0.0 and dampening=0.0"),
        (lambda: Adam(betas=(0.9, 1.0)), "betas must be two numbers, each at least 0 and below 1"),
        (lambda: Adam(betas=0.9), "betas must be two numbers"),
        (lambda: AdamW(eps=-1), "eps must be a finite number"),
        (lambda: Adagrad(lr_decay=-0.1), "lr_decay must be a finite number"),
        (lambda: FTRL(lr=0), "lr must be above 0"),
        (lambda: FTRL(beta=0), "divides by 0 where no gradient has been seen"),
    ],
)
def test_hyper_parameters_are_checked(make: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()


def test_hyper_is_checked_like_the_declaration() -> None:
    with pytest.raises(UsageError, match=r"SGD\(lr=-1\): lr must be"):
        SGD().with_hyper({"lr": -1})
    with pytest.raises(UsageError, match="'nesterov' is unknown to SGD; it has 'lr', 'momentum', 'dampening'"):
        SGD().with_hyper({"nesterov": 1})
    with pytest.raises(UsageError, match="'lr' of SGD must be a number, got str 'x'"):
        SGD().with_hyper({"lr": "x"})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="declared without momentum and keeps no buffer for it"):
        SGD().with_hyper({"momentum": 0.9})
    assert SGD(momentum=0.5).with_hyper({"momentum": 0.9, "lr": 2}) == SGD(momentum=0.9, lr=2)


@pytest.mark.parametrize("updater", [SGD(), Adam(), FTRL(), SignSGD()], ids=lambda each: type(each).__name__)
def test_an_optimizer_needs_floating_point(updater: Updater) -> None:
    with pytest.raises(UsageError, match="needs a floating-point key, got int32: use 'assign' or 'merge'"):
        make_slot(2, "int32", update=updater)


def test_add_is_refused_where_it_would_not_add() -> None:
    with pytest.raises(UsageError, match="update='add' needs reduce='sum' or 'mean', got 'max': use update='merge'"):
        make_slot(2, reduce="max", update="add")


def test_a_users_updater_runs_in_place() -> None:
    slot = make_slot(2, update=SignSGD())
    push(slot, np.array([3, -3], np.float32), np.array([-1, -1], np.float32), hyper={"lr": 0.25})
    assert value(slot).tolist() == [-0.25, 0.25]


def test_an_updater_without_update_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Unfinished must define update"):
        push(make_slot(1, update=Unfinished()), np.ones(1, np.float32))


def test_update_on_scattered_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=r"SGD.update works in place and needs contiguous arrays"):
        SGD().update(np.zeros(4, np.float32)[::2], np.ones(2, np.float32), {}, 1)
