"""Splitting samples into training and evaluation. Imports no torch."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from trainer4090.schema import Range

OpenFraction = Annotated[float, Range(low=0, high=1, above_low=True, below_high=True)]
"""A fraction that leaves something on both sides."""


def stratified(labels: np.ndarray, fraction: float) -> np.ndarray:
    """Whether each sample is for evaluation, bool (samples,): evenly spaced, floor(fraction x n) of n in every class.

    `labels` is int (samples,). The split depends on the labels alone, never on a seed, so that runs with different
    seeds are evaluated on the same samples.
    """
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        quota = np.floor(np.arange(len(members) + 1) * fraction)
        chosen[members] = np.diff(quota) > 0
    return chosen
