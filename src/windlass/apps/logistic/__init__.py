"""Sparse logistic regression with an L1 penalty: algorithms 1 and 3 of the parameter server paper.

with wl.Cluster(servers=1, workers=2) as cluster:
    fitted = cluster.run(logistic.train, "train.libsvm", logistic.Plan(l1=1.0))[0]
fitted.model.save("model.npz")
"""

from windlass.apps.logistic.fitting import Census, Fitted, fit, train, warm_up
from windlass.apps.logistic.model import Model, Score, load
from windlass.apps.logistic.plan import Plan
from windlass.apps.logistic.progress import Pass
from windlass.apps.logistic.reading import BadLine, Source
from windlass.apps.logistic.rows import Rows

__all__ = [
    "BadLine",
    "Census",
    "Fitted",
    "Model",
    "Pass",
    "Plan",
    "Rows",
    "Score",
    "Source",
    "fit",
    "load",
    "train",
    "warm_up",
]
