"""Chains, keys and pushes for the tests, drawn or named; and a wire that everything crosses as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np
from hypothesis import strategies as st

from windlass import filters as wf

EXACT = [
    wf.SmallGradient(0.5),
    wf.RandomSkip(0.4),
    wf.TopK(0.2),
    wf.RandomK(0.2),
    wf.KKT(),
]
CODERS = [
    wf.Cast("float16"),
    wf.Cast("bfloat16"),
    wf.Int8(block=8),
    wf.Int8(block=64, stochastic=False),
    wf.OneBit(block=16),
]


@dataclass(frozen=True)
class Sign(wf.Filter):
    """A user's own filter."""

    step: float = 0.25

    def encode(self, parcel):
        return parcel.pass_on(np.sign(parcel.values).astype(np.int8))

    def decode(self, parcel):
        parcel.check_values("int8")
        return parcel.give_back(parcel.values * parcel.number.type(self.step))


@dataclass(frozen=True)
class Untouched(wf.Filter):
    """Does nothing, but makes the chain measure its losses by decoding what it encoded."""

    gives: ClassVar[wf.Form] = wf.Form.NUMBERS
    is_lossy: ClassVar[bool] = False

    def encode(self, parcel):
        return parcel.pass_on(parcel.values)

    def decode(self, parcel):
        return parcel.give_back(parcel.values)


class Measured(wf.Filter):
    """Another filter without its fused path, so that the chain finds its losses by decoding what it encoded."""

    def __init__(self, inner):
        object.__setattr__(self, "inner", inner)

    takes = property(lambda self: self.inner.takes)
    gives = property(lambda self: self.inner.gives)
    is_lossy = property(lambda self: self.inner.is_lossy)
    keeps_loss = property(lambda self: self.inner.keeps_loss)

    def encode(self, parcel):
        return self.inner.encode(parcel)

    def decode(self, parcel):
        return self.inner.decode(parcel)


def chains(*, for_table: bool):
    """Any filters that may stand together: an id cache, selectors, a coder, compression."""
    parts = st.tuples(st.lists(st.sampled_from(EXACT), max_size=3), st.lists(st.sampled_from(CODERS), max_size=1))
    middle = parts.map(lambda each: each[0] + each[1])
    if for_table:
        where = st.none() | st.integers(0, 4)
        middle = st.tuples(middle, where).map(
            lambda each: each[0] if each[1] is None else [*each[0][: each[1]], wf.IdCache(), *each[0][each[1] :]]
        )
    return st.tuples(middle, st.just([wf.Zstd()]) | st.just([])).map(lambda each: each[0] + each[1])


def numbers(size: int, seed: int, scale: float = 1.0):
    """Normal, with some zeros, equal ones and large ones among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(size) * scale
    values[rng.random(size) < 0.1] = 0
    values[rng.random(size) < 0.1] = scale
    values[rng.random(size) < 0.02] *= 1e6
    return values.astype(np.float32)


def over_the_wire(payload: wf.Payload) -> wf.Payload:
    """As a server gets it: plain values and bytes, nothing else."""
    meta = msgspec.msgpack.decode(msgspec.msgpack.encode(payload.meta))
    return wf.Payload(meta, [bytearray(memoryview(each).cast("B")) for each in payload.buffers])


class Ends:
    """A worker's end and a server's end of one chain."""

    def __init__(self, filters, *, seed=1, lists=None, **target):
        self.chain = wf.Chain(filters, wf.Target("w", **target))
        self.sender = wf.Sender(self.chain, seed=seed)
        self.receiver = wf.Receiver(self.chain, lists)

    def send(self, values, **where) -> wf.Payload:
        return over_the_wire(self.sender.encode(values, **where))

    def deliver(self, values, *, ids=None, lo=0):
        """What the server makes of a push, as numbers in the places of the values."""
        size = None if ids is not None else values.size
        decoded = self.receiver.decode(self.send(values, ids=ids, lo=lo), size=size)
        if ids is None:
            return decoded.values
        arrived = np.zeros(values.shape, decoded.values.dtype)
        place = {int(each): row for row, each in enumerate(ids)}
        for each, row in zip(decoded.ids, decoded.values, strict=True):
            arrived[place[int(each)]] = row
        return arrived

    def residual(self, shape, *, ids=None, lo=0):
        """What the sender has kept back in these places."""
        found = np.zeros(shape, self.chain.target.number)
        for kept in self.sender.dump().residual:
            if ids is None:
                whole = np.zeros(max(lo + found.size, kept.lo + kept.values.size), found.dtype)
                whole[kept.lo : kept.lo + kept.values.size] = kept.values
                found += whole[lo : lo + found.size]
            else:
                rows = {int(each): row for each, row in zip(kept.ids, kept.values, strict=True)}
                for at, each in enumerate(ids):
                    found[at] += rows.get(int(each), 0)
        return found
