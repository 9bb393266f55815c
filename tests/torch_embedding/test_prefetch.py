"""Rows that are asked for ahead: found by forward, never staler than their table allows."""

from __future__ import annotations

import pytest
import torch

import windlass as wl

LR = 0.5


def lookups_of(*modules):
    return lambda batch: [(module, batch) for module in modules]


def step(module, ids):
    """Every row of these ids loses LR. What forward saw of them."""
    rows = module(ids)
    rows.sum().backward()
    return rows.detach()


def test_the_rows_of_the_next_batch_are_asked_for_before_this_one_is_worked_on(store):
    module = wl.torch.Embedding(store.make())
    batches = [torch.tensor([1, 2]), torch.tensor([3, 3]), torch.tensor([4, 5])]
    first = [module.table.pull(ids=batch) for batch in batches]
    seen = []
    store.calls.clear()
    for batch in wl.torch.prefetch(batches, lookups_of(module)):
        store.calls.append("begin")
        seen.append((batch, step(module, batch)))
        store.calls.append("end")
    verbs = [call if isinstance(call, str) else call.verb for call in store.calls]
    assert verbs == ["pull", "pull", "begin", "push", "end", "pull", "begin", "push", "end", "begin", "push", "end"]
    assert all(torch.equal(batch, given) for (batch, _), given in zip(seen, batches, strict=True))
    assert all(torch.equal(rows, given) for (_, rows), given in zip(seen, first, strict=True))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_row_misses_the_own_pushes_of_as_many_batches_as_it_was_asked_for_ahead(store, depth):
    module = wl.torch.Embedding(store.make(init=0.0))
    ids = torch.tensor([7])
    seen = [float(step(module, batch)[0, 0]) for batch in wl.torch.prefetch([ids] * 8, lookups_of(module), depth=depth)]
    assert seen == [-LR * max(0, number - depth) for number in range(8)]


def test_several_tables_and_bags_come_in_one_pull(store):
    rows, bag = wl.torch.Embedding(store.make("a")), wl.torch.EmbeddingBag(store.make("b"), mode="sum", padding_idx=0)
    batches = [(torch.tensor([1, 2, 1]), torch.tensor([0, 1]))] * 2
    for ids, offsets in wl.torch.prefetch(batches, lambda batch: [(rows, batch[0]), (bag, batch)]):
        store.calls.clear()
        found = rows(ids), bag(ids, offsets)
        assert store.calls == []
        assert torch.equal(found[0], rows.table.pull(ids=ids))
        assert [each.shape for each in found] == [(3, 4), (2, 4)]
    for ids, offsets in wl.torch.prefetch(batches, lambda batch: [(rows, batch[0]), (bag, batch)]):
        store.calls.clear()
        found = wl.torch.lookup([(rows, ids), (bag, (ids, offsets))])
        assert store.calls == []


def test_what_was_not_asked_for_ahead_is_pulled_as_always(store):
    module = wl.torch.Embedding(store.make())
    for batch in wl.torch.prefetch([torch.tensor([1, 2])], lookups_of(module)):
        store.calls.clear()
        with torch.no_grad():
            module(batch + 10)  # an evaluation in the middle
        assert store.verbs() == ["pull"]
        module(batch.clone().view(1, 2))  # the same ids in other memory
        assert store.verbs() == ["pull"]


def test_ids_that_are_changed_after_they_were_asked_for_are_pulled(store):
    module = wl.torch.Embedding(store.make())
    for batch in wl.torch.prefetch([torch.tensor([1, 2])], lookups_of(module)):
        batch += 10
        assert torch.equal(module(batch), module.table.pull(ids=torch.tensor([11, 12])))


def test_rows_of_a_batch_that_is_over_are_not_used_again(store):
    module = wl.torch.Embedding(store.make(init=0.0))
    ids = torch.tensor([1])
    for batch in wl.torch.prefetch([ids], lookups_of(module)):
        step(module, batch)
    assert float(module(ids).detach()[0, 0]) == -LR
    for batch in wl.torch.prefetch([ids] * 5, lookups_of(module)):
        step(module, batch)
        break
    assert float(module(ids).detach()[0, 0]) == -2 * LR


def test_with_several_pushes_to_a_batch_rows_are_pulled_again_rather_than_miss_them(store):
    module = wl.torch.Embedding(store.make(init=0.0))
    ids = torch.tensor([1])
    seen = []
    for batch in wl.torch.prefetch([ids] * 4, lookups_of(module)):
        seen += [float(step(module, batch)[0, 0]) / -LR for _ in range(2)]
    assert all(pushes - saw <= 1 for pushes, saw in enumerate(seen)), seen


def test_held_gradients_make_no_row_staler(store):
    module = wl.torch.Embedding(store.make(init=0.0))
    ids = torch.tensor([1])
    for number, batch in enumerate(wl.torch.prefetch([ids] * 6, lookups_of(module))):
        if number % 3 < 2:
            with module.no_sync():
                step(module, batch)
        else:
            step(module, batch)
    assert store.verbs().count("pull") == 6
    assert float(module(ids).detach()[0, 0]) == -6 * LR


def test_every_epoch_begins_anew(store):
    module = wl.torch.Embedding(store.make())
    batches = wl.torch.prefetch([torch.tensor([1]), torch.tensor([2])], lookups_of(module))
    assert len(batches) == 2
    assert [[int(batch) for batch in batches] for _ in range(2)] == [[1, 2], [1, 2]]
    assert list(wl.torch.prefetch([], lookups_of(module))) == []


def test_prefetching_from_a_table_that_allows_less_to_be_missing_is_an_error(store):
    sequential = wl.torch.Embedding(store.make("strict", consistency=wl.Sequential()))
    bounded = wl.torch.Embedding(store.make("lax", consistency=wl.Bounded(1)))
    eventual = wl.torch.Embedding(store.make("any", consistency=wl.Eventual()))
    batches = [torch.tensor([1])] * 4
    with pytest.raises(wl.UsageError, match=r"'strict' is sequential.*consistency=wl.Bounded\(1\)"):
        next(iter(wl.torch.prefetch(batches, lookups_of(sequential))))
    with pytest.raises(wl.UsageError, match=r"'lax' allows 1 pushes to be missing.*2 batches ahead"):
        next(iter(wl.torch.prefetch(batches, lookups_of(bounded), depth=2)))
    assert len(list(wl.torch.prefetch(batches, lookups_of(bounded)))) == 4
    assert len(list(wl.torch.prefetch(batches, lookups_of(eventual), depth=3))) == 4


def test_mistakes_are_named(store):
    module = wl.torch.Embedding(store.make())
    with pytest.raises(wl.UsageError, match="depth expects a whole number of at least 1, got 0"):
        wl.torch.prefetch([], lookups_of(module), depth=0)
    with pytest.raises(wl.UsageError, match="lookup expects pairs"):
        next(iter(wl.torch.prefetch([torch.tensor([1])], lambda batch: [module])))
    leased = store.batches(8, batch_size=2)
    with pytest.raises(wl.UsageError, match="leased one at a time"):
        wl.torch.prefetch(leased, lookups_of(module))
    loader = (torch.from_numpy(batch.indices) for batch in leased)
    with pytest.raises(wl.UsageError, match="leased one at a time"):
        next(iter(wl.torch.prefetch(loader, lookups_of(module))))
