"""Four workers fit a linear model through a parameter server.

    windlass run --servers 2 --workers 4 examples/linear.py
"""

import numpy as np

import windlass as wl

rng = np.random.default_rng(seed=0)
truth = rng.standard_normal(100).astype(np.float32)

store = wl.connect()
store.create("w", np.zeros_like(truth), reduce="mean", update=wl.SGD(lr=0.1))
rng = np.random.default_rng(seed=store.rank)  # every worker has data of its own
w = store.pull("w")
for _ in range(100):
    x = rng.standard_normal((500, 100), dtype=np.float32)
    gradient = x.T @ (x @ w - x @ truth) / len(x)
    w = store.pushpull("w", gradient)
print(f"distance to the truth: {np.linalg.norm(w - truth):.4f}")
