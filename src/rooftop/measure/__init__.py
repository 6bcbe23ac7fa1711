"""Predictions beside published measurements."""

from rooftop.measure._result import GROUPS, Errors, Prediction, Refused, Validation
from rooftop.measure._table import Row, published, read_rows, select
from rooftop.measure._validate import predict, validate

__all__ = [
    "GROUPS",
    "Errors",
    "Prediction",
    "Refused",
    "Row",
    "Validation",
    "predict",
    "published",
    "read_rows",
    "select",
    "validate",
]
