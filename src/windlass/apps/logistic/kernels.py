"""The loops over a worker's examples.

They lie in memory by columns: column j has the rows `rows[starts[j]:starts[j + 1]]`, each with its value. Of every row
its *margin* is kept, the sum of weight times value, and what follows from it: its *slope*, the derivative of its loss
by the margin, and its *bend*, the second derivative. When weights change, the margins of the rows that have those
features follow.
"""

from __future__ import annotations

import math

import numpy as np

from windlass.store.kernels import jit
from windlass.types import Array

_SHIFT = np.uint64(32)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.float32(1)
_STRETCHES = 64

SLOPE, BEND, LOAD, NUM_STATES = 0, 1, 2, 4
"""Where in a row's state, which is all in one place of a cache, its slope and bend are, and what a kernel adds up."""


# --- laying out by columns --------------------------------------------------------------------------------------------


@jit
def number(ids: Array, lowest: int, places: Array, found: Array, numbers: Array) -> int:
    """Number the different ids, in rising order: `found` are the ids, `numbers` which of them each one is. `places` are
    zeros, one for each id from `lowest` on. Returns how many there are."""
    for i in range(ids.size):
        places[ids[i] - lowest] = 1
    count = 0
    for place in range(places.size):
        if places[place]:
            found[count] = place + lowest
            places[place] = count
            count += 1
    for i in range(ids.size):
        numbers[i] = places[ids[i] - lowest]
    return count


@jit
def weigh(numbers: Array, values: Array, masses: Array, counts: Array) -> None:
    """Of each feature, the sum of its values' magnitudes, and how many there are."""
    for i in range(numbers.size):
        masses[numbers[i]] += abs(values[i])
        counts[numbers[i]] += 1


@jit
def deal(ids: Array, blocks: Array, num_blocks: int) -> None:
    """The block of each id, by a hash: the same for every worker."""
    for i in range(ids.size):
        given = np.uint64(ids[i])
        hashed = (given ^ (given >> _SHIFT)) * _FACTOR
        blocks[i] = ((hashed >> _SHIFT) * np.uint64(num_blocks)) >> _SHIFT


@jit
def transpose(
    given: Array, numbers: Array, values: Array, places: Array, starts: Array, rows: Array, into: Array
) -> None:
    """Rows to columns: the feature with number k goes to column places[k], or nowhere if that is -1. `starts` are where
    each column begins, and the last one ends.

    In two rounds: first to one of a few stretches of neighbouring columns, each small enough for a cache, then to the
    columns. In one, nearly every value would miss all caches."""
    num_columns, shift = starts.size - 1, 0
    while num_columns >> shift >= _STRETCHES:
        shift += 1
    cursors = np.empty((num_columns >> shift) + 1, np.int64)
    for stretch in range(cursors.size):
        cursors[stretch] = starts[min(stretch << shift, num_columns)]
    columns_between, rows_between = np.empty(rows.size, np.int32), np.empty(rows.size, np.int32)
    values_between = np.empty(into.size, into.dtype)
    for row in range(given.size - 1):
        for i in range(given[row], given[row + 1]):
            column = places[numbers[i]]
            if column >= 0:
                at = cursors[column >> shift]
                columns_between[at], rows_between[at], values_between[at] = column, row, values[i]
                cursors[column >> shift] = at + 1
    ends = starts[:-1].copy()
    for i in range(rows.size):
        at = ends[columns_between[i]]
        rows[at], into[at] = rows_between[i], values_between[i]
        ends[columns_between[i]] = at + 1


# --- margins ----------------------------------------------------------------------------------------------------------


@jit
def _bend_row(row: int, margins: Array, labels: Array, states: Array) -> None:
    label = labels[row]
    # The chance of the other label. In single precision, which is twice as fast and good enough for a slope; at 80 it
    # is far from overflow on either side.
    lead = np.float32(min(max(label * margins[row], -80.0), 80.0))
    chance = _ONE / (_ONE + math.exp(lead))
    states[row, SLOPE] = -label * chance
    states[row, BEND] = chance * (_ONE - chance)


@jit
def bend(margins: Array, labels: Array, states: Array) -> None:
    """The slope and the bend of every row."""
    for row in range(margins.size):
        _bend_row(row, margins, labels, states)


@jit
def losses(margins: Array, ways: Array, labels: Array, leads: Array, found: Array) -> None:
    """The loss with the margins as they are, and further on by each lead times its row's way."""
    found[:] = 0.0
    for row in range(margins.size):
        here, way = labels[row] * margins[row], labels[row] * ways[row]
        for k in range(leads.size):
            lead = here + leads[k] * way
            found[k] += math.log1p(math.exp(-lead)) if lead > 0 else math.log1p(math.exp(lead)) - lead


@jit
def add_columns(chosen: Array, steps: Array, starts: Array, rows: Array, values: Array, sums: Array) -> None:
    """Add to each row's sum the values of the chosen columns, times their steps."""
    for k in range(chosen.size):
        for at in range(starts[chosen[k]], starts[chosen[k] + 1]):
            sums[rows[at]] += values[at] * steps[k]


@jit
def shift(margins: Array, by: float) -> None:
    for row in range(margins.size):
        margins[row] += by


@jit
def move(
    chosen: Array,
    steps: Array,
    starts: Array,
    rows: Array,
    values: Array,
    margins: Array,
    marks: Array,
    touched: Array,
) -> int:
    """The weights of the chosen columns change by `steps`: so do the margins. `touched` gets the rows that it concerns;
    `marks` are False, and are again in the end. Returns how many they are, or -1 for too many to be counted."""
    count, left = 0, margins.size // 4
    for k in range(chosen.size):
        step, column = steps[k], chosen[k]
        if step == 0.0:
            continue
        begin, end = starts[column], starts[column + 1]
        left -= end - begin
        if left < 0:
            for at in range(begin, end):
                margins[rows[at]] += values[at] * step
            continue
        for at in range(begin, end):
            row = rows[at]
            margins[row] += values[at] * step
            if not marks[row]:
                marks[row] = True
                touched[count] = row
                count += 1
    for k in range(count):
        marks[touched[k]] = False
    return count if left >= 0 else -1


@jit
def bend_some(touched: Array, margins: Array, labels: Array, states: Array) -> None:
    for k in range(touched.size):
        _bend_row(touched[k], margins, labels, states)


# --- gradients --------------------------------------------------------------------------------------------------------


@jit
def gradient(starts: Array, rows: Array, values: Array, states: Array, found: Array) -> None:
    """The derivative of the loss by the weight of every column."""
    for column in range(found.size):
        total = 0.0
        for at in range(starts[column], starts[column + 1]):
            total += values[at] * states[rows[at], SLOPE]
        found[column] = total


@jit
def bound(starts: Array, rows: Array, values: Array, sums: Array, found: Array) -> None:
    """How large the second derivative by a weight counts if all weights move at once: a bend is at most 1/4, and the
    magnitudes of a row add up to `sums`."""
    for column in range(found.size):
        total = 0.0
        for at in range(starts[column], starts[column + 1]):
            total += abs(values[at]) * sums[rows[at]]
        found[column] = total / 4


@jit
def add_rows(starts: Array, rows: Array, values: Array, sums: Array) -> None:
    """Add each row's magnitudes."""
    for at in range(starts[-1]):
        sums[rows[at]] += abs(values[at])


@jit
def survey(
    chosen: Array,
    starts: Array,
    rows: Array,
    values: Array,
    states: Array,
    caution: float,
    found: Array,
) -> None:
    """For each of the chosen columns, which move together, the derivative of the loss by its weight, and how large the
    second derivative counts.

    Alone, a weight's second derivative is the sum of bend times value². Where other chosen features are in the same
    row, the magnitudes of their values count as well, times `caution`. With 1 this bounds the whole matrix of second
    derivatives by its diagonal (Gershgorin); features that do not pull in one direction need less. Their loads are
    zeros, and are again in the end."""
    count = 0
    for k in range(chosen.size):
        count += starts[chosen[k] + 1] - starts[chosen[k]]
        for at in range(starts[chosen[k]], starts[chosen[k] + 1]):
            states[rows[at], LOAD] += abs(values[at])
    for k in range(chosen.size):
        slope, weight = 0.0, 0.0
        for at in range(starts[chosen[k]], starts[chosen[k] + 1]):
            row, value = rows[at], values[at]
            slope += value * states[row, SLOPE]
            size = abs(value)
            weight += states[row, BEND] * size * (size + caution * (states[row, LOAD] - size))
        found[k, 0], found[k, 1] = slope, weight
    if 4 * count > len(states):
        states[:, LOAD] = 0
        return
    for k in range(chosen.size):
        for at in range(starts[chosen[k]], starts[chosen[k] + 1]):
            states[rows[at], LOAD] = 0


# --- stepping, on the servers -----------------------------------------------------------------------------------------


@jit
def _shrink(value: float, by: float) -> float:
    return value - by if value > by else (value + by if value < -by else 0.0)


@jit
def step(values: Array, changes: Array, gradients: Array, lasts: Array, turns: Array, numbers: Array) -> None:
    """What `Proximal` does; `numbers` are l1, lr, lead and turn."""
    l1, lr, lead, turn = numbers
    for i in range(values.size):
        gradients[i] += changes[i]
        base = values[i]
        if turns[i] != turn:
            value, last = values[i], lasts[i]
            base = value + lead * (value - last) if value * last > 0 else value
            lasts[i], turns[i] = value, turn
        values[i] = _shrink(base - lr * gradients[i], lr * l1)


@jit
def step_block(values: Array, changes: Array, bends: Array, moves: Array, numbers: Array) -> None:
    """What `BlockProximal` does; `numbers` are l1, lr, lead and turn, the least bend, and the first radius."""
    l1, lr, lead, turn, flattest, first_radius = numbers
    for i in range(0, values.size, 2):
        gradient = values[i + 1] + changes[i]
        bends[i] += changes[i + 1]
        bend = max(bends[i] / lr, flattest)
        radius = moves[i] if moves[i] > 0 else first_radius
        base = values[i]
        if bends[i + 1] != turn:
            value, last = values[i], moves[i + 1]
            base = value + lead * (value - last) if value * last > 0 else value
            moves[i + 1], bends[i + 1] = value, turn
        wanted = _shrink(bend * base - gradient, l1) / bend
        moved = min(max(wanted - base, -radius), radius)
        moves[i] = max(2 * abs(moved), radius / 2)
        # What is within reach lands exactly: a 0 is a 0.
        values[i] = wanted if abs(wanted - base) <= radius else base + moved
        values[i + 1] = gradient


# --- predicting -------------------------------------------------------------------------------------------------------


@jit
def score(starts: Array, ids: Array, values: Array, known: Array, weights: Array, found: Array) -> None:
    """The margin of each row, by weights of `known` ids in rising order; others weigh 0."""
    for row in range(found.size):
        total = 0.0
        for at in range(starts[row], starts[row + 1]):
            place = np.searchsorted(known, ids[at])
            if place < known.size and known[place] == ids[at]:
                total += values[at] * weights[place]
        found[row] += total
