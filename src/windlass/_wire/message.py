"""What all messages are."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True, gc=False):
    """Frozen, tagged, keyword-only. Fields are only ever added, at the end, with a default."""
