"""The API is asked what its own schema allows, and what it does not: it answers as the schema says, and never breaks."""

from __future__ import annotations

from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis")
pytest.importorskip("fastapi", reason="comes with rooftop[web]")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rooftop.web._commands import EXAMPLES  # noqa: E402

PATHS = [*(f"/api/{name}" for name in EXAMPLES), "/api/trace"]


@pytest.fixture(scope="module")
def api(server: str) -> Any:
    return schemathesis.openapi.from_url(f"{server}/openapi.json")


def test_every_operation_is_fuzzed(api: Any) -> None:
    posts = {path for path, methods in api.raw_schema["paths"].items() if "post" in methods}
    assert posts == set(PATHS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_the_api_keeps_its_schema(api: Any, path: str, mode: str) -> None:
    operation = api[path]["POST"]

    @given(st.data())
    @settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def check(data: Any) -> None:
        case = data.draw(operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode]))
        response = case.call()
        assert response.status_code in (200, 400, 403, 405, 413, 422, 503)
        assert "Traceback" not in response.text
        assert "/tmp/" not in response.text
        if response.status_code in (200, 422):
            case.validate_response(response, checks=[schemathesis.checks.response_schema_conformance])

    check()
