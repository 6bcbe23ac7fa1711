"""Every example of the notation's reference page is executed."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_examples_of_the_reference_page():
    page = Path(__file__).parents[1] / "docs" / "reference" / "notation.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 20
    assert result.failed == 0
