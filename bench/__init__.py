"""How fast Windlass is, measured beside its peers in one run. `python -m bench.dense` is the door."""
