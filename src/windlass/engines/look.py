"""Asking the nodes of a cluster how they are, from outside.

A looker joins nothing: it links to the manager and the servers as a stranger who knows the token and only sends
Inspect. The run does not notice it, it works before the cluster is complete, and a node that does not answer spoils
only its own row.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from windlass._transport.hub import SocketHub
from windlass._wire import messages as m
from windlass._wire.effects import LinkDown, LinkUp, Received, Send
from windlass.engines.config import NodeConfig, fresh_incarnation, open_hub
from windlass.errors import ClusterError, TimeoutError
from windlass.types import MANAGER, Incarnation, Role

LOOK_SECONDS = 4.0
"""Below the five seconds after which a dial gives up: silence is then told as silence, not as a failed dial."""


class Looker:
    """Links to the nodes of one cluster. Use as a context manager. Not thread-safe."""

    def __init__(self, config: NodeConfig) -> None:
        self._manager = config.manager
        calm = msgspec.structs.replace(config.options, chaos="")  # who looks is no part of what is disturbed
        self._hub: SocketHub = open_hub(fresh_incarnation(), msgspec.structs.replace(config, options=calm))
        self._linked: set[Incarnation] = set()
        self._request = 0

    def __enter__(self) -> Looker:
        return self

    def __exit__(self, *exception: object) -> None:
        self._hub.close()

    def manager(self, seconds: float = LOOK_SECONDS) -> dict[str, Any]:
        """What the manager knows: generation, nodes, keys. Blocks; raises ClusterError when it cannot be reached and
        TimeoutError when it does not answer in time."""
        answers = self._ask({MANAGER: self._manager}, seconds)
        answer = answers.get(MANAGER)
        if isinstance(answer, str):
            raise ClusterError(f"the manager at {', '.join(self._manager)} cannot be reached: {answer}")
        if answer is None:
            where = ", ".join(self._manager)
            raise TimeoutError(f"the manager at {where} did not answer within {seconds:g} s; it may be stopped")
        return answer

    def everything(self, seconds: float = LOOK_SECONDS, *, with_counts: bool = False) -> dict[str, Any]:
        """As `Store.status()`, with "problems": one sentence for each server that did not answer in time; and with
        what each server has counted of whom, if that is wanted."""
        deadline = time.monotonic() + seconds
        said = self.manager(seconds)
        servers = {n["incarnation"]: n for n in said["nodes"] if n["role"] == Role.SERVER and n["state"] == "alive"}
        addresses = {Incarnation(who): (node["address"],) for who, node in servers.items()}
        answers = self._ask(addresses, max(0.1, deadline - time.monotonic()), with_counts=with_counts)
        said["servers"], said["problems"] = {}, []
        for who, node in servers.items():
            answer = answers.get(who)
            if isinstance(answer, dict):
                said["servers"][node["name"]] = answer
            else:
                why = f"cannot be reached: {answer}" if answer else f"did not answer within {seconds:g} s"
                said["problems"].append(f"{node['name']} (pid {node['pid']}, {node['address']}) {why}")
        return said

    def _ask(
        self, peers: Mapping[Incarnation, tuple[str, ...]], seconds: float, *, with_counts: bool = False
    ) -> dict[Incarnation, dict[str, Any] | str]:
        """Each one's answer; a text says why there can be none, and whoever is missing has not answered in time."""
        self._request += 1
        inspect = m.Inspect(request=self._request, with_counts=with_counts)
        for peer, addresses in peers.items():
            if peer in self._linked:
                self._hub.send(Send(peer, inspect))
            else:
                self._hub.dial(peer, addresses)
        answers: dict[Incarnation, dict[str, Any] | str] = {}
        deadline = time.monotonic() + seconds
        while not peers.keys() <= answers.keys() and (left := deadline - time.monotonic()) > 0:
            for event in self._hub.poll(left):
                match event:
                    case LinkUp(peer=peer):
                        self._linked.add(peer)
                        self._hub.send(Send(peer, inspect))
                    case LinkDown(peer=peer, reason=reason):
                        self._linked.discard(peer)
                        answers[peer] = reason
                    case Received(peer=peer, message=m.Done(request=request, detail=detail)):
                        if request == self._request:
                            answers[peer] = detail
                    case _:
                        pass  # a generation or another notice for members
        return answers
