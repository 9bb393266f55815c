"""Checkpoints as files: written so that nothing is ever half there, read slot by slot, checked byte by byte.

This part knows nothing of clusters; docs/checkpoints.md says what is in the files.
"""

from windlass.checkpoint.diff import ArrayDifference, Difference, diff
from windlass.checkpoint.listing import Listed, State, exists, latest, list_checkpoints
from windlass.checkpoint.manifest import (
    AfterRound,
    Manifest,
    Moment,
    SavedArray,
    SavedFile,
    SavedKey,
    SavedSlot,
    SlotEntry,
    WhenAsked,
)
from windlass.checkpoint.reader import Reader, read_manifest
from windlass.checkpoint.verify import Problem, verify
from windlass.checkpoint.writer import Writer

__all__ = [
    "AfterRound",
    "ArrayDifference",
    "Difference",
    "Listed",
    "Manifest",
    "Moment",
    "Problem",
    "Reader",
    "SavedArray",
    "SavedFile",
    "SavedKey",
    "SavedSlot",
    "SlotEntry",
    "State",
    "WhenAsked",
    "Writer",
    "diff",
    "exists",
    "latest",
    "list_checkpoints",
    "read_manifest",
    "verify",
]
