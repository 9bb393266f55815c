"""Small summaries of large streams, filled in the workers and merged by push; and shortest paths, by the same means.

`CountMin` counts how often each id came, by reduce "sum"; `HyperLogLog` how many different ones, by "max";
`shortest_paths` relaxes the edges of a graph that workers share, by "min".
"""

from windlass.apps.sketch.count_min import CountMin
from windlass.apps.sketch.hyper_log_log import HyperLogLog
from windlass.apps.sketch.paths import Edges, Paths, dijkstra, random_edges, shortest_paths
from windlass.apps.sketch.streams import zipf_ids

__all__ = [
    "CountMin",
    "Edges",
    "HyperLogLog",
    "Paths",
    "dijkstra",
    "random_edges",
    "shortest_paths",
    "zipf_ids",
]
