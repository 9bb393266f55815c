"""A store in memory with tables only."""
import numpy as np, torch
from windlass.store.table import TableSlot, Contribution
from windlass.store.table_options import TableOptions
from windlass.store.reduce import resolve_reducer, reducer_rule
from windlass.store.update import resolve_updater, updater_rule
from windlass.types import Heap, Bounded


class Task:
    def __init__(self, result=None): self.result = result
    def wait(self, timeout=None): return self.result


class Table:
    def __init__(self, store, name, slot, consistency):
        self.store, self.name, self.slot, self.consistency = store, name, slot, consistency
        self.dim, self.dtype = slot.options.dim, slot.options.dtype
    def __len__(self): return self.slot.num_rows
    def pull(self, ids): return self.store.pull([self.name], ids={self.name: ids})[0]


class Store:
    num_workers, rank = 1, 0
    def __init__(self):
        self.tables, self.calls, self.begun_batches = {}, [], []
    def create_table(self, name, dim, *, dtype="float32", init=None, reduce="sum", update="add", consistency=Bounded(4), **_):
        from windlass.store.initial import resolve_initial, initial_rule
        opts = TableOptions(dim=dim, dtype=dtype, init=resolve_initial(initial_rule(init)).salted(name))
        slot = TableSlot(opts, reducer=resolve_reducer(reducer_rule(reduce, {}), {}), updater=resolve_updater(updater_rule(update, {}), {}), memory=Heap())
        return self.tables.setdefault(name, Table(self, name, slot, consistency))
    def table(self, name): return self.tables[name]
    def pull(self, names, *, ids, wait=True, **_):
        self.calls.append(("pull", tuple(names), {n: len(i) for n, i in ids.items()}))
        out = []
        for n in names:
            rows = self.tables[n].slot.pull(ids[n].numpy())
            out.append(torch.from_numpy(rows))
        return out if wait else Task(out)
    def push(self, values, *, ids, hyper=None, completes=None, after=()):
        self.calls.append(("push", tuple(values), {n: len(i) for n, i in ids.items()}))
        for n, v in values.items():
            self.tables[n].slot.apply([Contribution(ids[n].numpy(), v.contiguous().numpy())], divisor=1, hyper=hyper, now=0.0)
        return Task()
