"""An option that a call has not got is a UsageError that names the one that was meant, and those that there are. What
is missing, or was given without its name, is told in the same way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import windlass as wl
from windlass.errors import options_checked

VALUE = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda store: wl.Store(consistancy=1), r"Store\(\) .* consistancy; did you mean consistency\?"),
        (lambda store: wl.Cluster(worker=2), r"Cluster\(\) got unknown option worker; did you mean workers\?"),
        (lambda store: wl.Cluster(colour=1, worker=2), "unknown options colour, worker; did you mean workers"),
        (lambda store: wl.connect(managr="x"), r"connect\(\) .* did you mean manager\?"),
        (lambda store: wl.Chaos(None, kil="server:0"), r"Chaos\(\) .* did you mean kill\?"),
        (lambda store: wl.Group(store, machine=[[0]]), r"Group\(\) .* did you mean machines\?"),
        (lambda store: store.create("w", VALUE, updte="add"), r"create\(\) got unknown option updte; did you mean upd"),
        (lambda store: store.create_table("e", dim=3, updat="add"), r"create_table\(\) .* did you mean update\?"),
        (lambda store: store.create_table("e", dims=3), r"create_table\(\) .* did you mean dim\?"),
        (lambda store: store.batches(10, batchsize=2), r"batches\(\) .* did you mean batch_size\?"),
        (lambda store: store.save("somewhere", kep=2), r"save\(\) .* did you mean keep\?"),
        (lambda store: store.assign("w", VALUE, rnge=(0, 3)), r"assign\(\) .* did you mean range\?"),
        (lambda store: wl.SGD(learning_rate=0.1), r"SGD\(\) got unknown option learning_rate; known: lr, momentum, "),
        (lambda store: wl.AdamW(beta=0.1), r"AdamW\(\) .* did you mean betas\?"),
        (lambda store: wl.Normal(sd=0.1), r"Normal\(\) .* did you mean std\?"),
        (lambda store: wl.Reducer("most", combin=max), r"Reducer\(\) .* did you mean combine\?"),
        (lambda store: wl.filters.TopK(fractoin=0.1), r"TopK\(\) .* did you mean fraction\?"),
        (lambda store: wl.torch.Optimizer(None, store, mod="store"), r"Optimizer\(\) .* did you mean mode\?"),
        (lambda store: wl.torch.wrap(torch.nn.Linear(1, 1), stoer=store), r"wrap\(\) .* did you mean store\?"),
        (lambda store: wl.torch.DataParallel(torch.nn.Linear(1, 1), device=[]), r"DataParallel\(\) .* mean devices\?"),
        (lambda store: wl.torch.Embedding(None, freze=True), r"Embedding\(\) .* did you mean freeze\?"),
    ],
)
def test_the_error_names_the_option_that_was_meant(call, text):
    with pytest.raises(wl.UsageError, match=text) as caught:
        call(wl.Store())
    assert "; known: " in str(caught.value) or "? known: " in str(caught.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda store: store.create_table("e"), r"create_table\(\) needs dim"),
        (lambda store: store.create_table(), r"create_table\(\) needs key and dim"),
        (
            lambda store: store.create_table("e", 16),
            r"create_table\(\) takes 1 argument beside options, got 2: give dim= by name",
        ),
        (lambda store: store.create("w"), r"create\(\) needs value"),
        (lambda store: store.create("w", VALUE, key="w"), r"create\(\) got key twice: by its place, and by name"),
        (lambda store: wl.Group(), r"Group\(\) needs over"),
        (
            lambda store: wl.Group(store, [[0]]),
            r"Group\(\) takes 1 argument beside options, got 2: give others by name: machines, timeout",
        ),
        (
            lambda store: wl.connect("127.0.0.1:1"),
            r"connect\(\) takes no arguments beside options, got 1: give others by name: manager, token, .*",
        ),
        (
            lambda store: wl.Cluster(3),
            r"Cluster\(\) takes no arguments beside options, got 1: give others by name: servers, workers, .*",
        ),
        (lambda store: wl.Store(3), r"Store\(\) takes no arguments beside options, got 1: give consistency= by name"),
        (lambda store: wl.Constant(1.0, 2.0), r"Constant\(\) takes 1 argument, got 2"),
        (lambda store: wl.torch.wrap(), r"wrap\(\) needs model"),
        (lambda store: wl.torch.Optimizer(), r"Optimizer\(\) needs optimizer"),
    ],
)
def test_an_argument_that_is_missing_or_has_no_name_is_told_in_our_words(call, text):
    with pytest.raises(wl.UsageError, match=f"^{text}$"):
        call(wl.Store())


def test_a_type_error_of_the_call_itself_passes():
    @options_checked
    def double(number: int, *, times: int = 2) -> int:
        return len(number) * times  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        double(1, times=3)
    with pytest.raises(wl.UsageError, match=r"^double\(\) needs number$"):
        double(times=3)


def test_a_type_error_of_what_the_call_calls_passes():
    """Even if it is of a call of the same name, with arguments that are wrong in the same way."""

    def inner(number: int, *, times: int) -> int:
        return number * times

    @options_checked
    def outer(number: int, *, times: int = 1) -> int:
        return inner(number, times, 3)  # type: ignore[call-arg, misc]

    with pytest.raises(TypeError, match=r"inner\(\) takes 1 positional argument but 3"):
        outer(1, times=2)


def test_a_call_that_takes_any_option_is_left_alone():
    @options_checked
    def take(**options: int) -> int:
        return options["missing"] + None  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        take(missing=1)


@pytest.mark.parametrize("name", ["push", "pull", "pushpull", "buffer", "wait", "barrier"])
def test_calls_of_a_training_loop_are_not_wrapped_for_it(name):
    assert not hasattr(getattr(wl.Store, name), "__wrapped__")
    with pytest.raises(TypeError, match="unexpected keyword argument 'rnge'"):
        getattr(wl.Store(), name)("w", rnge=(0, 3))
