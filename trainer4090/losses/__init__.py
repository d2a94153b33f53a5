"""Losses by name, as sums over targets."""

from __future__ import annotations

from trainer4090.records import Loss
from trainer4090.registry import Registry

LOSSES: Registry[Loss] = Registry("loss", __name__)
"""Builders and traits take `(config, data_traits)`; traits return `LossTraits` without importing torch."""
