"""Filters: what is sent of a push, and what stays behind for the next one. docs/filters.md shows how to use them."""

from windlass.filters.cast import Cast
from windlass.filters.chain import Chain
from windlass.filters.filter import Filter
from windlass.filters.id_cache import IdCache
from windlass.filters.int8 import Int8
from windlass.filters.kkt import KKT, ftrl_threshold
from windlass.filters.lists import IdLists, NamedIds
from windlass.filters.memory import Kept
from windlass.filters.one_bit import OneBit
from windlass.filters.parcel import Decoded, Form, NeedIds, Parcel, Payload, Target
from windlass.filters.random_k import RandomK
from windlass.filters.random_skip import RandomSkip
from windlass.filters.receiver import Receiver
from windlass.filters.rules import filter_rules, resolve_filters
from windlass.filters.sender import Sender, SenderState, Traffic
from windlass.filters.small_gradient import SmallGradient
from windlass.filters.top_k import TopK
from windlass.filters.zstd import Zstd

__all__ = [
    "KKT",
    "Cast",
    "Chain",
    "Decoded",
    "Filter",
    "Form",
    "IdCache",
    "IdLists",
    "Int8",
    "Kept",
    "NamedIds",
    "NeedIds",
    "OneBit",
    "Parcel",
    "Payload",
    "RandomK",
    "RandomSkip",
    "Receiver",
    "Sender",
    "SenderState",
    "SmallGradient",
    "Target",
    "TopK",
    "Traffic",
    "Zstd",
    "filter_rules",
    "ftrl_threshold",
    "resolve_filters",
]
