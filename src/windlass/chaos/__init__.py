"""Chaos on purpose: disturb a job that runs, and tell what came of it.

`plan` says what is to happen and when (pure), `firing` does it, `accounting` compares what the workers were told with
what the servers have counted (pure), `report` tells. `session` is all of them in order; `api` is `wl.Chaos`.
"""
