"""A cluster from a notebook cell: no launcher, no `__main__` guard, a function defined on the spot.

    python examples/notebook_style.py
"""

import numpy as np

import windlass as wl


def count(store, steps):
    store.create("total", np.zeros(3), update="add")
    for _ in range(steps):
        store.push("total", np.full(3, store.rank + 1.0))
    return store.pull("total")


with wl.Cluster(servers=2, workers=4, consistency=wl.Bounded(2)) as cluster:
    results = cluster.run(count, steps=10)
    print("worker-0 saw", results[0])
    print("in the end  ", cluster.store().pull("total"))
