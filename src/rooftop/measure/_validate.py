"""A prediction for every published row, or the rule that refuses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rooftop.errors import RooftopError
from rooftop.measure._offline import inference
from rooftop.measure._result import Prediction, Refused, Validation
from rooftop.measure._serving import serving, source
from rooftop.measure._table import Row
from rooftop.measure._training import benchmark, training

#: Kind of table -> what predicts its rows, and names their source.
_PREDICTORS: Mapping[str, tuple[Callable[[Row], tuple[Prediction, ...]], Callable[[Row], str]]] = {
    "training": (training, benchmark),
    "inference": (inference, benchmark),
    "serving": (serving, source),
}


def predict(row: Row) -> tuple[Prediction, ...]:
    """What a row publishes, predicted. Raises RooftopError with the rule by which it cannot be."""
    return _PREDICTORS[row.table][0](row)


def validate(rows: Iterable[Row], progress: Callable[[float], None] | None = None) -> Validation:
    """Predict every row; what cannot be predicted says by which rule."""
    rows = tuple(rows)
    predictions: list[Prediction] = []
    refused: list[Refused] = []
    for done, row in enumerate(rows):
        try:
            predictions += predict(row)
        except RooftopError as error:
            model = row.text("model") or row.text("model_path")
            refused.append(Refused(row.id, row.table, _PREDICTORS[row.table][1](row), model, error.message))
        if progress is not None:
            progress((done + 1) / len(rows))
    return Validation(tuple(predictions), tuple(refused))
