"""The random numbers of decoding: each is a function of what it is for, so that a replay draws the same ones."""

from __future__ import annotations

import enum

import numpy as np


class Purpose(enum.IntEnum):
    """What a number decides; numbers for different purposes are independent."""

    TOKEN = 0
    """Which token comes next."""
    DRAFT = 1
    """Which token a draft proposes."""
    ACCEPT = 2
    """Whether a proposed token stands."""


def uniform(seed: int, step: int, sequence: int, purpose: Purpose) -> float:
    """The number in [0, 1) for the `step`-th new token of the `sequence`-th entry of a batch.

    Philox keyed by (seed, purpose) and counted by (sequence, step); seed, step and sequence are 64-bit unsigned.
    """
    # the first word is the generator's own: it counts blocks of numbers
    counter = np.array([0, sequence, step, 0], np.uint64)
    key = np.array([seed, int(purpose)], np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=counter)).random())
