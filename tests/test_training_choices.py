"""The choices of a plan: one table that the interfaces go over."""

from __future__ import annotations

import pytest

from rooftop._api import PlanOptions, StepOptions
from rooftop.errors import InputError
from rooftop.training import Choices, offered, values_of
from rooftop.training._choices import combinations


def test_defaults_are_values_and_the_interface_offers_every_choice():
    assert Choices().check() == Choices()
    names = {f.name for f in offered()}
    assert names <= set(PlanOptions.__annotations__)
    assert names <= set(StepOptions.__annotations__)


def test_combinations_keep_the_order_of_values():
    found = list(combinations({"zero": (1, 3), "remat": ("full", "none")}))
    assert [(c.zero, c.remat) for c in found] == [(3, "none"), (3, "full"), (1, "none"), (1, "full")]


def test_what_recomputes_more_is_never_faster():
    none, full = Choices(), Choices(remat="full")
    assert full.never_faster_than(none)
    assert not none.never_faster_than(full)
    assert not Choices(zero=1, remat="full").never_faster_than(none)


@pytest.mark.parametrize("bad", [{"zero": 7}, {"zero": True}, {"remat": "all"}, {"remat": ["none"]}, {"remat": None}])
def test_values_that_do_not_exist_are_refused_by_name(bad):
    (name,) = bad
    with pytest.raises(InputError, match=f"{name} = .* is not known") as error:
        Choices(**bad).check()
    assert str(values_of(name)[0]) in error.value.message
