"""Predictions beside published measurements."""

from rooftop.measure._rows import Row, published, read_rows
from rooftop.measure._validate import Errors, Prediction, Skipped, Validation, validate

__all__ = ["Errors", "Prediction", "Row", "Skipped", "Validation", "published", "read_rows", "validate"]
