"""The loops over the bytes of a text file: libsvm lines and CSV lines become numbers.

A kernel is given whole lines. It stops at the first one that is broken and says where it was and what it expected;
words are made of that elsewhere.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from windlass.store.kernels import jit
from windlass.types import Array


class Fault(IntEnum):
    """What was expected and not found."""

    NONE = 0
    LABEL = 1
    CLASS = 2
    INDEX = 3
    COLON = 4
    NUMBER = 5
    FIELDS_MISSING = 6
    FIELDS_LEFT = 7


ROWS, NONZEROS, FAULT, AT = range(4)
"""What a kernel leaves in `told`: how much it has written, and for a broken line what was expected, at which byte."""

_LABEL, _CLASS, _INDEX, _COLON, _NUMBER, _MISSING, _LEFT = (int(each) for each in list(Fault)[1:])
_TAB, _NEWLINE, _RETURN, _SPACE, _HASH, _PLUS, _COMMA, _MINUS, _DOT, _ZERO, _NINE, _PAIR = (
    int(each) for each in b"\t\n\r #+,-.09:"
)
_E, _LARGE_E = int(b"e"[0]), int(b"E"[0])
_MOST_DIGITS = 18
_TOO_LARGE = 3.4028235677973366e38  # what is nearer to 2**128 than to the largest float32
_MOST_TENTH = ((1 << 63) - 1) // 10


@jit
def _number(text: Array, at: int, end: int, found: Array) -> int:
    """Read a decimal number at `at` into found[0]. Returns where it ends, or `at` if there is none, or if it does not
    fit into a float32."""
    here, sign = at, 1.0
    if here < end and (text[here] == _MINUS or text[here] == _PLUS):
        sign = -1.0 if text[here] == _MINUS else 1.0
        here += 1
    mantissa: Any = np.int64(0)
    digits, exponent, seen, after_dot = 0, 0, False, False
    while here < end:
        byte = text[here]
        if _ZERO <= byte <= _NINE:
            seen = True
            if digits < _MOST_DIGITS:
                mantissa = mantissa * 10 + (np.int64(byte) - _ZERO)
                digits += mantissa > 0
                exponent -= after_dot
            else:
                exponent += not after_dot
        elif byte == _DOT and not after_dot:
            after_dot = True
        else:
            break
        here += 1
    if not seen:
        return at
    if here < end and (text[here] == _E or text[here] == _LARGE_E):
        power: Any = 0
        mark, negative, any_power = here + 1, False, False
        if mark < end and (text[mark] == _MINUS or text[mark] == _PLUS):
            negative = text[mark] == _MINUS
            mark += 1
        while mark < end and _ZERO <= text[mark] <= _NINE:
            power = min(power * 10 + (np.int64(text[mark]) - _ZERO), 9999)
            any_power = True
            mark += 1
        if not any_power:
            return at
        exponent += -power if negative else power
        here = mark
    value = sign * float(mantissa)
    if exponent > 0:
        value *= 10.0 ** min(exponent, 400)
    elif exponent < 0:
        value = value / 10.0**-exponent if exponent >= -300 else 0.0
    if not abs(value) < _TOO_LARGE:
        return at
    found[0] = value
    return here


@jit
def _integer(text: Array, at: int, end: int, found: Array) -> int:
    """Read a whole number, 0 or more, into found[0]. Returns where it ends, or `at` if there is none or it is too
    large for an int64."""
    here, value = at, np.int64(0)
    while here < end and _ZERO <= text[here] <= _NINE:
        digit = np.int64(text[here]) - _ZERO
        if value > _MOST_TENTH or (value == _MOST_TENTH and digit > 7):
            return at
        value = value * 10 + digit
        here += 1
    found[0] = value
    return here


@jit
def _is_blank(byte: Any) -> bool:
    return bool(byte in (_SPACE, _TAB, _RETURN))


@jit
def _class(label: float) -> float:
    """+1 or -1; 0 for a label that is neither of two classes."""
    return 1.0 if label == 1.0 else (-1.0 if label == -1.0 or label == 0.0 else 0.0)


@jit
def libsvm(text: Array, starts: Array, ids: Array, values: Array, labels: Array, told: Array) -> None:
    """Read whole lines `label index:value ...`, with comments after '#'. Empty lines are passed over. There is room for
    every line and every colon of the text."""
    number, whole = np.empty(1, np.float64), np.empty(1, np.int64)
    at, size, row, count = 0, text.size, 0, 0
    told[:] = 0
    while at < size:
        end = at
        while end < size and text[end] != _NEWLINE:
            end += 1
        stop = at
        while stop < end and text[stop] != _HASH:
            stop += 1
        here = at
        at = end + 1
        while here < stop and _is_blank(text[here]):
            here += 1
        if here == stop:
            continue
        fault, after = 0, _number(text, here, stop, number)
        if after == here or (after < stop and not _is_blank(text[after])):
            fault = _LABEL
        elif _class(number[0]) == 0.0:
            fault = _CLASS
        labels[row] = _class(number[0])
        while fault == 0:
            here = after
            while here < stop and _is_blank(text[here]):
                here += 1
            if here == stop:
                break
            after = _integer(text, here, stop, whole)
            if after == here:
                fault = _INDEX
                break
            if after == stop or text[after] != _PAIR:
                fault = _COLON
                break
            begin = after + 1
            after = _number(text, begin, stop, number)
            if after == begin or (after < stop and not _is_blank(text[after])):
                fault = _NUMBER
                break
            ids[count], values[count] = whole[0], number[0]
            count += 1
        if fault:
            told[FAULT], told[AT] = fault, here
            break
        row += 1
        starts[row] = count
    told[ROWS], told[NONZEROS] = row, count


@jit
def csv(
    text: Array,
    starts: Array,
    ids: Array,
    values: Array,
    labels: Array,
    told: Array,
    separator: int,
    num_fields: int,
    label_field: int,
) -> None:
    """Read whole lines of `num_fields` numbers. The one at `label_field` is the label, the others are features 1, 2,
    and so on, of which those that are 0 are left out. There is room for every line and every number."""
    number = np.empty(1, np.float64)
    at, size, row, count = 0, text.size, 0, 0
    told[:] = 0
    while at < size:
        end = at
        while end < size and text[end] != _NEWLINE:
            end += 1
        here, stop = at, end
        at = end + 1
        while stop > here and text[stop - 1] == _RETURN:
            stop -= 1
        if stop == here:
            continue
        fault, feature = 0, 0
        for field in range(num_fields):
            while here < stop and text[here] == _SPACE:
                here += 1
            after = _number(text, here, stop, number)
            close = after
            while close < stop and text[close] == _SPACE:
                close += 1
            if after == here or (close < stop and text[close] != separator):
                fault = _LABEL if field == label_field else _NUMBER
                break
            if field == label_field:
                labels[row] = _class(number[0])
                if labels[row] == 0.0:
                    fault = _CLASS
                    break
            else:
                feature += 1
                if number[0] != 0.0:
                    ids[count], values[count] = feature, number[0]
                    count += 1
            if field + 1 < num_fields and close == stop:
                fault, here = _MISSING, stop
                break
            if field + 1 == num_fields and close < stop:
                fault, here = _LEFT, close
                break
            here = close + 1
        if fault:
            told[FAULT], told[AT] = fault, here
            break
        row += 1
        starts[row] = count
    told[ROWS], told[NONZEROS] = row, count
