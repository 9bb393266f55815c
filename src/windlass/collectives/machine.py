"""Which machine this is."""

from __future__ import annotations

import hashlib
import os


def machine_id() -> bytes:
    """The same for all processes that see each other's memory and numbers: one boot of one machine, one namespace."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot = file.read()
    return hashlib.blake2b(boot + os.readlink("/proc/self/ns/pid").encode(), digest_size=16).digest()
