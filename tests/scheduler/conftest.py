"""Explored runs of leased work need a crew, too."""

from tests.consistency.conftest import crew

__all__ = ["crew"]
