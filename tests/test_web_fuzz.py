"""The API is asked what its own schema allows, and does not: it answers as the schema says, and never breaks."""

from __future__ import annotations

from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis")
pytest.importorskip("fastapi")

from hypothesis import HealthCheck, settings  # noqa: E402

from rooftop.web import application  # noqa: E402

schema = schemathesis.openapi.from_asgi(
    "/openapi.json", application(workers=1, seconds=20, hosts=frozenset({"testserver"})), base_url="http://localhost"
)


@schema.parametrize()
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_api_keeps_its_schema(case: Any) -> None:
    response = case.call()
    assert response.status_code in (200, 400, 403, 404, 405, 413, 422, 503)
    assert "Traceback" not in response.text
    assert "/tmp/" not in response.text
    case.validate_response(
        response, checks=[schemathesis.checks.not_a_server_error] if response.status_code != 503 else []
    )
