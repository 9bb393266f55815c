"""Tables and networks trained together, by one worker and by several."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import windlass as wl

IDS, DIM, BATCH = 12, 3, 8


class Model(nn.Module):
    """Two rows of one table and one of another, and a small network."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.top = nn.Linear(3 * DIM, 1)
        generator = torch.Generator().manual_seed(3)  # torch's own is shared by workers that are threads
        for parameter in self.top.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.first(ids[:, :2]).flatten(1)
        return self.top(torch.cat([rows, self.second(ids[:, 2:])], dim=1)).squeeze(1)


def batches(steps):
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randint(0, IDS, (BATCH, 5), generator=generator), torch.randn(BATCH, generator=generator))
        for _ in range(steps)
    ]


def remote(store, consistency, name=""):
    declared = {
        "init": wl.Uniform(-0.5, 0.5),
        "reduce": "mean",
        "update": wl.Adagrad(lr=0.1),
        "consistency": consistency,
    }
    tables = [store.create_table(f"{name}{each}", dim=DIM, **declared) for each in ("first", "second")]
    return Model(wl.torch.Embedding(tables[0]), wl.torch.EmbeddingBag(tables[1], mode="sum"))


def rows_of(model):
    ids = torch.arange(IDS)
    return [module.table.pull(ids=ids).clone() for module in (model.first, model.second)]


def alone(first, second, data):
    """The same in one process, without Windlass: the rows and the network that it ends with."""
    model = Model(
        nn.Embedding.from_pretrained(first.clone(), freeze=False),
        nn.EmbeddingBag.from_pretrained(second.clone(), freeze=False, mode="sum"),
    )
    tables = torch.optim.Adagrad([model.first.weight, model.second.weight], lr=0.1)
    network = torch.optim.Adam(model.top.parameters(), lr=0.01)
    for ids, wanted in data:
        for each in (tables, network):
            each.zero_grad()
        F.mse_loss(model(ids), wanted).backward()
        for each in (tables, network):
            each.step()
    return [model.first.weight, model.second.weight, *model.top.parameters()]


def trained(store, consistency, steps, micro=1, name=""):
    """This worker's part of the training, its part of each batch in so many goes: what it began and ended with."""
    model = remote(store, consistency, name)
    begun = rows_of(model)
    optimizer = wl.torch.Optimizer(torch.optim.Adam(model.parameters(), lr=0.01), store)
    for ids, wanted in batches(steps):
        mine = slice(store.rank * BATCH // store.num_workers, (store.rank + 1) * BATCH // store.num_workers)
        optimizer.zero_grad()
        parts = list(zip(ids[mine].chunk(micro), wanted[mine].chunk(micro), strict=True))
        with optimizer.no_sync():
            for some, labels in parts[:-1]:
                (F.mse_loss(model(some), labels) / micro).backward()
        (F.mse_loss(model(parts[-1][0]), parts[-1][1]) / micro).backward()
        optimizer.step()
    store.barrier()
    ended = [*rows_of(model), *(each.detach().clone() for each in model.parameters())]
    return begun, ended, [store.version(f"{name}first"), store.version(f"{name}second")]


def assert_close(mine, theirs):
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other.detach(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("consistency", [wl.Sequential(), wl.Bounded(2), wl.Eventual()])
def test_one_worker_trains_as_torch_alone(consistency):
    with wl.Store() as store:
        begun, ended, versions = trained(store, consistency, steps=6)
    assert versions == [6, 6]
    assert_close(ended, alone(*begun, batches(6)))


def test_two_workers_with_sequential_tables_train_as_one_with_the_whole_batch(two):
    for begun, ended, versions in two.run(trained, wl.Sequential(), steps=6, name="whole/"):
        assert versions == [6, 6]
        assert_close(ended, alone(*begun, batches(6)))


def test_gradients_accumulated_inside_no_sync_of_the_optimizer_are_one_push(two):
    for begun, ended, versions in two.run(trained, wl.Sequential(), steps=4, micro=2, name="micro/"):
        assert versions == [4, 4]
        assert_close(ended, alone(*begun, batches(4)))


def count_pushes(store, steps, depth):
    """Both push 1 to every row in every step. What each saw of the other's row when it had made n pushes."""
    declared = {"update": "add", "consistency": wl.Bounded(depth)}
    module = wl.torch.Embedding(store.create_table(f"counts-{depth}", dim=1, **declared))
    ids = torch.tensor([0, 1])
    seen = []
    for _ in wl.torch.prefetch([ids] * steps, lambda batch: [(module, batch)], depth=depth):
        rows = module(ids)
        seen.append(float(rows.detach()[1 - store.rank, 0]))
        if store.rank:
            time.sleep(0.01)  # the other one is always as far ahead as it may be
        rows[store.rank].sum().backward()
    module.wait()
    store.barrier()
    return seen, module(ids).detach().flatten().tolist()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prefetched_row_misses_no_more_of_another_workers_pushes_than_its_table_allows(two, depth):
    for seen, ended in two.run(count_pushes, 12, depth):
        assert ended == [12, 12]
        assert all(saw >= number - depth for number, saw in enumerate(seen)), seen


def work_in_processes(store, steps):
    torch.set_num_threads(1)
    begun, ended, versions = trained(store, wl.Sequential(), steps)
    seen, counted = count_pushes(store, steps, 1)
    return [each.tolist() for each in begun], [each.tolist() for each in ended], versions, seen, counted


def test_it_is_the_same_in_processes():
    with wl.Cluster(servers=2, workers=2, timeout=60) as cluster:
        for begun, ended, versions, seen, counted in cluster.run(work_in_processes, 5):
            assert versions == [5, 5]
            assert_close([torch.tensor(each) for each in ended], alone(*map(torch.tensor, begun), batches(5)))
            assert counted == [5, 5]
            assert all(saw >= number - 1 for number, saw in enumerate(seen))


def lease(store):
    """Every sample is counted once, whoever worked on it."""
    module = wl.torch.Embedding(store.create_table("leased", dim=1, update="add", consistency=wl.Bounded(2)))
    for batch in store.batches(40, batch_size=4, epochs=2):
        module(torch.from_numpy(batch.indices)).sum().backward()
    module.wait()
    store.barrier()
    return module(torch.arange(40)).detach().flatten().tolist()


def test_leased_batches_are_completed_by_the_push_of_their_gradients(two):
    assert two.run(lease) == [[2.0] * 40] * 2
