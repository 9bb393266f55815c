"""What a filter is: a class with two methods, `encode` and `decode`, whose fields are all that travels of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np

from windlass.errors import UsageError
from windlass.filters.parcel import Form, Parcel, Target
from windlass.store import naming
from windlass.types import Array


@dataclass(frozen=True)
class Filter(naming.Configured):
    """A step on the way of numbers to the server. Subclass it, and write both ways:

        @dataclass(frozen=True)
        class Sign(wl.filters.Filter):
            step: float = 0.01

            def encode(self, parcel):
                return parcel.pass_on(np.sign(parcel.values).astype(np.int8))

            def decode(self, parcel):
                parcel.check_values("int8")
                return parcel.give_back(parcel.values * parcel.number.type(self.step))

    What the two together lose stays in the worker and is added to the next push. In a cluster the class is named by its
    import path, and every server must be able to import it: code never travels.
    """

    takes: ClassVar[Form] = Form.NUMBERS
    gives: ClassVar[Form] = Form.CODES
    """Set it to Form.NUMBERS if other filters can go on with what `encode` returns."""

    is_lossy: ClassVar[bool] = True
    """False promises that `decode` gives back every bit."""

    is_fused: ClassVar[bool] = False
    """Whether `encode_keeping` is better than encoding, decoding and subtracting, which the chain does otherwise."""

    def __str__(self) -> str:
        """As it would be written: what is as usual is left out."""
        unusual = [each.name for each in fields(self) if getattr(self, each.name) != each.default]
        given = [f"{name}={getattr(self, name)!r}" for name in unusual]
        return f"{type(self).__name__}({', '.join(given)})"

    def encode(self, parcel: Parcel) -> Parcel:
        """In the worker: what is to be sent of it. The parcel stays as it is. It must not depend on anything but the
        parcel and its `context.seed`, so that runs repeat."""
        raise NotImplementedError(f"{type(self).__name__} must define encode(parcel)")

    def decode(self, parcel: Parcel) -> Parcel:
        """In the server: the numbers again, of dtype `parcel.number`, for the same rows. What came may be anything:
        check it before you index with it. Whatever it raises becomes a PeerError."""
        raise NotImplementedError(f"{type(self).__name__} must define decode(parcel)")

    def encode_keeping(self, parcel: Parcel) -> Parcel:
        """As `encode`, but leaves in parcel.values what `decode` will not give back. Only where `is_fused`."""
        return self.encode(parcel)

    def form_after(self, form: Form) -> Form:
        """What its parcels hold, given parcels that hold this."""
        return self.gives

    @property
    def keeps_loss(self) -> bool:
        """Whether what it loses is remembered and added to the next push."""
        return self.is_lossy

    def for_pull(self) -> Filter | None:
        """What it does to the answers of pulls; None: nothing. Servers remember no losses, and draw no lots."""
        return None

    def check(self, target: Target) -> None:
        """UsageError if this filter cannot be used on such a key."""
        if not self.is_lossy:
            return
        if "float" not in target.dtype:
            raise UsageError(f"'{target.name}': {self} needs a floating-point key, got {target.dtype}")
        if target.reduce not in ("sum", "mean"):
            raise UsageError(
                f"'{target.name}': {self} sends later what it does not send now, which needs reduce='sum' or 'mean', "
                f"got '{target.reduce}'"
            )


@dataclass(frozen=True)
class Lossy(Filter):
    """A filter that rounds or leaves out. With `feedback=False` what it loses is forgotten."""

    is_fused: ClassVar[bool] = True

    feedback: bool = field(default=True, kw_only=True)

    @property
    def keeps_loss(self) -> bool:
        return self.feedback

    def encode_and_subtract(self, parcel: Parcel) -> Parcel:
        """`encode_keeping` the long way: for what the kernels do not do in one pass."""
        encoded = self.encode(parcel)
        parcel.values -= self.decode(encoded).values
        return encoded


def as_float32(numbers: Array) -> Array:
    """What the kernels of coders read: float64 rounded to float32, and held within its range."""
    if numbers.dtype == np.float32:
        return numbers
    largest = np.finfo(np.float32).max
    return np.clip(numbers, -largest, largest).astype(np.float32)


def require(condition: bool, filter: Filter, name: str, expected: str) -> None:
    """UsageError saying what a filter's field should have been."""
    if not condition:
        raise UsageError(f"{type(filter).__name__}({name}={getattr(filter, name)!r}): {name} must be {expected}")


def is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
