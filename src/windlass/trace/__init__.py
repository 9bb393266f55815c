"""Traces: what every node did and when, for Perfetto and for the numbers below. docs/tracing.md shows how."""

from windlass.trace.analysis import Overlap, load, overlap, share_hidden, waits

__all__ = ["Overlap", "load", "overlap", "share_hidden", "waits"]
