"""Modules over tables give, and learn, what torch's own do over rows of their own."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import windlass as wl
from tests.torch_embedding.recording import recorded

LR = 0.5


def own_rows(module, ids):
    """torch's module over the same rows: ids 0 to n are its indices."""
    return module.table.pull(ids=torch.arange(ids)).clone()


def plain_of(module, ids=20):
    rows = own_rows(module, ids)
    padding = module.padding_idx
    if padding is not None:
        rows[padding] = 0
    options = {"padding_idx": padding, "freeze": False}
    if isinstance(module, wl.torch.EmbeddingBag):
        options |= {"mode": module.mode, "include_last_offset": module.include_last_offset}
        return nn.EmbeddingBag.from_pretrained(rows, **options)
    return nn.Embedding.from_pretrained(rows, scale_grad_by_freq=module.scale_grad_by_freq, **options)


def assert_trains_alike(module, *inputs, ids=20, steps=3):
    """Both give the same for the same input, step after step, and end with the same rows."""
    plain = plain_of(module, ids)
    optimizer = torch.optim.SGD(plain.parameters(), lr=LR)
    shape = plain(*inputs).shape
    factor = torch.linspace(-1, 1, shape.numel()).view(shape)
    for _ in range(steps):
        optimizer.zero_grad()
        mine, theirs = module(*inputs), plain(*inputs)
        torch.testing.assert_close(mine, theirs)
        ((mine + 0.1 * mine**2) * factor).sum().backward()
        ((theirs + 0.1 * theirs**2) * factor).sum().backward()
        optimizer.step()
    found = own_rows(module, ids)
    if module.padding_idx is not None:
        found[module.padding_idx] = 0
    torch.testing.assert_close(found, plain.weight.detach())


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3), (0,), ()])
def test_an_embedding_trains_as_torchs(store, shape):
    ids = torch.tensor([3, 1, 3, 7, 0, 3])[: torch.Size(shape).numel()].view(shape)
    assert_trains_alike(wl.torch.Embedding(store.make()), ids)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3])
def test_a_bag_trains_as_torchs(store, mode, padding):
    module = wl.torch.EmbeddingBag(store.make(), mode=mode, padding_idx=padding)
    assert_trains_alike(module, torch.tensor([3, 1, 3, 7, 0, 3, 2]), torch.tensor([0, 2, 2, 5]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_in_every_row_needs_no_offsets(store, mode):
    assert_trains_alike(wl.torch.EmbeddingBag(store.make(), mode=mode), torch.tensor([[3, 1, 3], [7, 0, 2]]))


def test_a_padding_id_gives_zeros_and_is_neither_pulled_nor_pushed(store):
    module = wl.torch.Embedding(store.make(), padding_idx=2)
    assert_trains_alike(module, torch.tensor([[2, 1, 2], [5, 6, 2]]))
    store.calls.clear()
    output = module(torch.tensor([2, 2]))
    assert not output.any()
    output.sum().backward()
    assert [call.counts for call in store.calls] == [{"emb": 0}, {"emb": 0}]


def test_weights_of_samples_take_gradients_themselves(store):
    module = wl.torch.EmbeddingBag(store.make(), mode="sum")
    plain = plain_of(module)
    ids, offsets = torch.tensor([3, 1, 3, 7]), torch.tensor([0, 3])
    mine, theirs = (torch.tensor([0.5, -1, 2, 0.1], requires_grad=True) for _ in range(2))
    assert_trains_alike(module, ids, offsets, mine.detach(), steps=1)
    module = wl.torch.EmbeddingBag(store.make("other"), mode="sum")
    plain = plain_of(module)
    module(ids, offsets, mine).pow(2).sum().backward()
    plain(ids, offsets, theirs).pow(2).sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_the_last_offset_may_be_the_end_and_gradients_may_be_scaled_by_frequency(store):
    module = wl.torch.EmbeddingBag(store.make(), mode="sum", include_last_offset=True)
    assert_trains_alike(module, torch.tensor([3, 1, 3, 7]), torch.tensor([0, 3, 4]))
    assert_trains_alike(wl.torch.Embedding(store.make("b"), scale_grad_by_freq=True), torch.tensor([3, 1, 3, 3]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_are_of_the_tables_type(store, dtype):
    module = wl.torch.Embedding(store.make(dtype=str(dtype).removeprefix("torch.")))
    before = module(torch.tensor([1, 2])).detach()
    assert before.dtype == dtype
    module(torch.tensor([1])).sum().backward()
    after = module(torch.tensor([1, 2])).detach()
    torch.testing.assert_close(after, before - torch.tensor([[LR], [0]], dtype=dtype))


def test_any_int64_is_an_id_and_int32_will_do(store):
    module = wl.torch.Embedding(store.make())
    ids = torch.tensor([-(2**63), -1, 0, 2**63 - 1])
    before = module(ids).detach()
    assert len({tuple(row.tolist()) for row in before}) == 4
    module(ids).sum().backward()
    torch.testing.assert_close(module(ids).detach(), before - LR)
    assert torch.equal(module(torch.tensor([0, -1], dtype=torch.int32)), module(torch.tensor([0, -1])))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_the_ids_each_different_one_is_pulled_once_and_gets_the_sum(data):
    with recorded() as store:
        module = wl.torch.EmbeddingBag(store.make(), mode=data.draw(st.sampled_from(["sum", "mean"])),
                                       padding_idx=data.draw(st.sampled_from([None, 0])))  # fmt: skip
        ids = data.draw(st.lists(st.integers(0, 9), max_size=30))
        cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=5))
        assert_trains_alike(module, torch.tensor(ids, dtype=torch.int64), torch.tensor([0, *sorted(cuts)]))
        different = len(set(ids) - ({0} if module.padding_idx == 0 else set()))
        assert store.calls[1].counts == store.calls[2].counts == {"emb": different}


# --- one message -----------------------------------------------------------------------------------------------------


def test_many_tables_are_one_pull_and_one_push_a_step(store):
    modules = [wl.torch.Embedding(store.make(f"t{n}")) for n in range(26)]
    ids = torch.arange(52).view(2, 26)
    found = wl.torch.lookup(zip(modules, ids.unbind(1), strict=True))
    sum(each.sum() for each in found).backward()
    assert store.verbs() == ["pull", "push"]
    assert all(call.counts == {f"t{n}": 2 for n in range(26)} for call in store.calls)


def test_modules_that_are_called_one_by_one_still_push_together(store):
    one, other = wl.torch.Embedding(store.make("a")), wl.torch.EmbeddingBag(store.make("b"), mode="sum")
    (one(torch.tensor([1, 2])).sum() + other(torch.tensor([[5, 5]])).sum()).backward()
    assert store.verbs() == ["pull", "pull", "push"]
    assert store.calls[-1].counts == {"a": 2, "b": 1}


def test_a_lookup_takes_bags_with_offsets_and_a_table_twice(store):
    rows, bag = wl.torch.Embedding(store.make("a")), wl.torch.EmbeddingBag(store.make("b"), mode="sum")
    ids, offsets = torch.tensor([4, 5, 4]), torch.tensor([0, 1])
    first, second, bags = wl.torch.lookup([(rows, ids), (rows, ids + 1), (bag, (ids, offsets))])
    assert store.verbs() == ["pull"]
    assert store.calls[0].counts == {"a": 3, "b": 2}
    assert torch.equal(first, rows(ids))
    assert torch.equal(second, rows(ids + 1))
    assert torch.equal(bags, bag(ids, offsets))


def test_one_module_twice_in_a_forward_gets_the_sum_of_both(store):
    module = wl.torch.Embedding(store.make())
    before = module(torch.tensor([1, 2, 3])).detach()
    (module(torch.tensor([1, 2])).sum() + 3 * module(torch.tensor([2, 3])).sum()).backward()
    assert store.verbs() == ["pull", "pull", "pull", "push"]
    torch.testing.assert_close(module(torch.tensor([1, 2, 3])), before - LR * torch.tensor([[1.0], [4], [3]]))


# --- when nothing, or more than one thing, is pushed -----------------------------------------------------------------


def test_without_grad_mode_and_when_frozen_nothing_is_pushed(store):
    module, frozen = wl.torch.Embedding(store.make()), wl.torch.Embedding(store.make("fixed"), freeze=True)
    weight = torch.ones(4, requires_grad=True)
    with torch.no_grad():
        assert not module(torch.tensor([1])).requires_grad
    with torch.inference_mode():
        assert module(torch.tensor([1])).shape == (1, 4)
    (frozen(torch.tensor([1])) * weight).sum().backward()
    assert weight.grad is not None
    assert store.verbs() == ["pull"] * 3


def test_eval_mode_changes_nothing_as_with_torchs(store):
    module = wl.torch.Embedding(store.make()).eval()
    module(torch.tensor([1])).sum().backward()
    assert store.verbs() == ["pull", "push"]


def test_it_has_no_parameters_and_nothing_in_its_state_dict(store):
    model = nn.Sequential(wl.torch.Embedding(store.make()), nn.Linear(4, 1))
    assert len(list(model.parameters())) == 2
    assert set(model.state_dict()) == {"1.weight", "1.bias"}


def test_accumulated_gradients_are_one_push_of_their_sum(store):
    module = wl.torch.Embedding(store.make(update=wl.Adagrad(lr=0.1)))
    plain = plain_of(module)
    optimizer = torch.optim.Adagrad(plain.parameters(), lr=0.1)
    parts = [torch.tensor([1, 2]), torch.tensor([2, 3]), torch.tensor([2])]
    with module.no_sync():
        for ids in parts[:2]:
            module(ids).pow(2).sum().backward()
    assert "push" not in store.verbs()
    module(parts[2]).pow(2).sum().backward()
    assert store.verbs().count("push") == 1
    for ids in parts:
        plain(ids).pow(2).sum().backward()
    optimizer.step()
    torch.testing.assert_close(own_rows(module, 20), plain.weight.detach())


def test_what_was_accumulated_before_a_failure_is_dropped(store):
    module = wl.torch.Embedding(store.make())
    before = own_rows(module, 3)

    def accumulate_and_fail():
        with module.no_sync():
            module(torch.tensor([1])).sum().backward()
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        accumulate_and_fail()
    module(torch.tensor([2])).sum().backward()
    torch.testing.assert_close(own_rows(module, 3), before - LR * torch.tensor([[0.0], [0], [1]]))


def test_a_backward_that_fails_has_pushed_nothing(store):
    module = wl.torch.Embedding(store.make())
    before = own_rows(module, 3)
    x = module(torch.tensor([1]))

    def fail(_):
        raise RuntimeError("broken")

    earlier = torch.ones(1, 4, requires_grad=True)
    (earlier * 1).register_hook(fail)
    broken = earlier * 1
    broken.register_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        (module(torch.tensor([1])) * x + broken).sum().backward()
    assert "push" not in store.verbs()
    module(torch.tensor([2])).sum().backward()
    torch.testing.assert_close(own_rows(module, 3), before - LR * torch.tensor([[0.0], [0], [1]]))


def test_two_backwards_through_one_forward_are_two_pushes(store):
    module = wl.torch.Embedding(store.make())
    before = own_rows(module, 2)
    loss = module(torch.tensor([1])).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert store.verbs().count("push") == 2
    torch.testing.assert_close(own_rows(module, 2), before - LR * torch.tensor([[0.0], [2]]))


def test_gradients_that_are_only_asked_for_are_not_pushed(store):
    module, weight = wl.torch.Embedding(store.make()), torch.ones(4, requires_grad=True)
    loss = (module(torch.tensor([1])) * weight).sum()
    torch.autograd.grad(loss, weight)
    assert store.verbs() == ["pull"]


def test_numbers_of_the_updater_can_be_set_for_each_step(store):
    module, other = wl.torch.Embedding(store.make(), hyper={"lr": 0.1}), wl.torch.Embedding(store.make("other"))
    before = own_rows(module, 2)
    (module(torch.tensor([1])).sum() + other(torch.tensor([1])).sum()).backward()
    torch.testing.assert_close(own_rows(module, 2), before - torch.tensor([[0.0], [0.1]]))
    module.hyper = {"lr": 1.0}
    module(torch.tensor([1])).sum().backward()
    torch.testing.assert_close(own_rows(module, 2), before - torch.tensor([[0.0], [1.1]]))


def test_two_modules_over_one_table_are_one_push_and_must_agree(store):
    table = store.make()
    one, other = wl.torch.Embedding(table), wl.torch.EmbeddingBag(table, mode="sum")
    before = own_rows(one, 2)
    (one(torch.tensor([1])).sum() + other(torch.tensor([[1]])).sum()).backward()
    assert store.verbs().count("push") == 1
    torch.testing.assert_close(own_rows(one, 2), before - torch.tensor([[0.0], [2 * LR]]))
    other.hyper = {"lr": 0.1}
    with pytest.raises(wl.UsageError, match="'emb' is pushed to with different hyper"):
        (one(torch.tensor([1])).sum() + other(torch.tensor([[1]])).sum()).backward()
    assert store.verbs().count("push") == 1


def test_a_gradient_of_the_gradient_goes_through(store):
    module = wl.torch.Embedding(store.make())
    weight = torch.ones(4, requires_grad=True)
    rows = module(torch.tensor([1]))
    (slope,) = torch.autograd.grad((rows * weight).pow(2).sum(), weight, create_graph=True)
    slope.sum().backward()
    assert store.verbs() == ["pull", "push"]


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_are_named(store):
    rows, bag = wl.torch.Embedding(store.make()), wl.torch.EmbeddingBag(store.make("bags"))
    ids = torch.tensor([1, 2])
    mistakes = [
        (lambda: wl.torch.Embedding("emb"), "Embedding expects a table, got 'emb': its rows are on the servers"),
        (lambda: wl.torch.Embedding(10, 2), r"got 10, 2: .* store\.create_table\('emb', dim=16\) makes one"),
        (lambda: wl.torch.Embedding(num_embeddings=10, embedding_dim=2), "Embedding expects a table, got 10, 2"),
        (lambda: wl.torch.EmbeddingBag(10, 2, mode="sum"), r"wl\.torch\.EmbeddingBag\(store\.table\('emb'\)\)"),
        (lambda: wl.torch.Embedding(rows.table, padding_idx=1.5), "padding_idx expects an id or None, got 1.5"),
        (lambda: wl.torch.EmbeddingBag(rows.table, mode="median"), "mode expects 'sum', 'mean', 'max', got 'median'"),
        (lambda: rows(ids.float()), "Embedding of 'emb': ids must be whole numbers, int64 at best, got torch.float32"),
        (lambda: rows([1, 2]), "expected a tensor of ids, got list"),
        (lambda: bag(ids), "EmbeddingBag of 'bags': ids of one dimension need offsets"),
        (lambda: bag(ids.view(1, 2), torch.tensor([0])), "take no offsets"),
        (lambda: bag(ids.view(1, 2), None, torch.ones(1, 2)), "per_sample_weights are for mode 'sum'"),
        (lambda: wl.torch.lookup([rows]), r"lookup expects pairs \(module, ids\)"),
        (lambda: wl.torch.lookup([(nn.Embedding(2, 2), ids)]), "got Embedding"),
        (lambda: wl.torch.lookup([(rows, (ids, torch.tensor([0])))]), "expected ids alone, got a tuple of 2"),
        (lambda: copy.deepcopy(rows), "a copy would train the same rows"),
        (lambda: pickle.dumps(bag), "cannot be pickled"),
    ]
    for mistake, message in mistakes:
        with pytest.raises(wl.UsageError, match=message):
            mistake()
    assert "push" not in store.verbs()


def test_a_module_shows_its_table(store):
    module = wl.torch.EmbeddingBag(store.make(), mode="sum", padding_idx=0)
    assert repr(module) == "EmbeddingBag('emb', 4, padding_idx=0, mode='sum')"
    assert module.embedding_dim == 4
