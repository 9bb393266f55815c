"""A filter as a user would write it, in a module that servers can import."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windlass import filters as wf


@dataclass(frozen=True)
class Halves(wf.Filter):
    """Whole multiples of a step, in 16 bits."""

    step: float = 1 / 256

    def encode(self, parcel: wf.Parcel) -> wf.Parcel:
        return parcel.pass_on(np.rint(parcel.values / self.step).astype(np.int16))

    def decode(self, parcel: wf.Parcel) -> wf.Parcel:
        parcel.check_values("int16")
        return parcel.give_back(parcel.values * parcel.number.type(self.step))
