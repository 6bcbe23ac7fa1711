"""The notebook of the examples runs from top to bottom, draws what it says, and is kept without outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient", reason="runs notebooks")
pytest.importorskip("ipykernel", reason="is what runs them")
pytest.importorskip("plotly", reason="comes with rooftop[figures]")

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert cell.metadata == {}


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    notebook = nbformat.read(ROOT / "examples" / "tour.ipynb", as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "src"))
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3")
        yield client.execute(cwd=str(tmp_path_factory.mktemp("tour")))


@pytest.mark.filterwarnings("ignore")  # of the kernel's own libraries
def test_the_tour_draws_what_it_says(tour: Any) -> None:
    drawn = []
    for cell in tour.cells:
        for output in cell.get("outputs", ()):
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output
            drawn += re.findall(r'data-name="(\w+)"', output.get("data", {}).get("text/html", ""))
    for figure in ("roofline", "systolic", "topology", "timeline", "memory", "frontier", "simulation", "tornado"):
        assert figure in drawn
    told = "".join(o["data"].get("text/plain", "") for c in tour.cells for o in c.get("outputs", ()) if "data" in o)
    assert "bound by hbm; by arithmetic from B = 253" in told
