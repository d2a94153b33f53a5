"""What a plugin needs, in one import: registries, the records that builders return, and types of Config fields."""

from __future__ import annotations

from trainer4090.data import DATA, Data, Source, dataset_source, tensor_source
from trainer4090.errors import ConfigError, DataError, Problem
from trainer4090.item_format import ImageFormat
from trainer4090.losses import LOSSES, per_target
from trainer4090.metrics import METRICS, Accumulator, Mean, Metric
from trainer4090.models import MODELS
from trainer4090.optimizers import OPTIMIZERS, Optimizer
from trainer4090.records import Loss, Model
from trainer4090.schedules import SCHEDULES, Horizon, Schedule
from trainer4090.schema import Count, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Probability
from trainer4090.traits import DataTraits, LossTraits, ModelTraits

__all__ = [
    "DATA",
    "LOSSES",
    "METRICS",
    "MODELS",
    "OPTIMIZERS",
    "SCHEDULES",
    "Accumulator",
    "ConfigError",
    "Count",
    "Data",
    "DataError",
    "DataTraits",
    "Fraction",
    "Horizon",
    "ImageFormat",
    "Loss",
    "LossTraits",
    "Mean",
    "Metric",
    "Model",
    "ModelTraits",
    "NonNegativeFloat",
    "Optimizer",
    "PositiveFloat",
    "PositiveInt",
    "Probability",
    "Problem",
    "Schedule",
    "Source",
    "dataset_source",
    "per_target",
    "tensor_source",
]
