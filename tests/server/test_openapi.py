"""/openapi.json and /docs: true to the routes, and nothing in them that the server then does not do."""

import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR
from server_process import ServerProcess

from typebar.server.app import create_app
from typebar.server.openapi import document
from typebar.server.settings import ServerSettings
from typebar.server.state import ServerState

DOCUMENT = document()
PAGES = {"/", "/assets/{name}", "/docs", "/openapi.json"}  # for people: not described
SOCKET = "/v1/ws"
EXAMPLES = 12  # per route, the same ones every time; 500 take about ten minutes
MOST = {"max_tokens": 4, "max_completion_tokens": 4, "n_predict": 4, "n": 3}

described = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def served(tiny_server: ServerProcess) -> Any:
    return tiny_server.get("/openapi.json").json()


def test_the_document_is_valid_openapi(served: Any) -> None:
    assert served["openapi"] == "3.1.0"
    OPENAPI_31_VALIDATOR.validate(served)
    for schema in served["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    names = set(re.findall(r"#/components/schemas/(\w+)", str(served)))
    assert set(served["components"]["schemas"]) == names
    operations = [operation for methods in served["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"].endswith(".") for operation in operations)


def test_every_route_is_described_and_every_described_one_is_there(tiny_server: ServerProcess, served: Any) -> None:
    app: Any = create_app(ServerState(ServerSettings()))
    routes = {re.sub(r":path}", "}", route.path) for route in app.routes}
    assert routes == set(served["paths"]) | PAGES | {SOCKET}
    for path, methods in served["paths"].items():
        response = httpx.put(tiny_server.url + path.replace("{id}", "tiny"))
        assert response.status_code == 405
        allowed = set(response.headers["allow"].split(", ")) - {"HEAD"}
        assert allowed == {method.upper() for method in methods}


def test_requests_are_described_with_their_fields(served: Any) -> None:
    schema = served["components"]["schemas"]["ChatRequest"]
    assert schema["required"] == ["messages"]
    validator = Draft202012Validator({**schema, "components": served["components"]})
    message = {"role": "user", "content": "Hello"}
    for fields in (
        {},
        {"temperature": None},
        {"stop": "x"},
        {"stop": ["x"]},
        {"logit_bias": {"7": 1}},
        {"user": "ada"},
    ):
        assert validator.is_valid({"messages": [message], **fields}), fields
    for fields in ({"temperature": "hot"}, {"n": 1.5}, {"stop": 7}, {"messages": "Hello"}, {"messages": [{}]}):
        assert not validator.is_valid({"messages": [message], **fields}), fields


class Page(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_docs_page_needs_no_script_and_no_other_host(tiny_server: ServerProcess) -> None:
    response = tiny_server.get("/docs")
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src" not in policy
    page = Page(response.text)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "img", "object", "embed", "base"}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        assert (attributes.get("href") or "/").startswith("/")
    assert not re.search(r"@import|url\(|//[a-z0-9.-]+\.[a-z]{2,}", response.text)


def test_the_docs_page_tells_every_route_and_field(tiny_server: ServerProcess, served: Any) -> None:
    text = Page(tiny_server.get("/docs").text).text
    for path, methods in served["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in text
    for field in served["components"]["schemas"]["ChatRequest"]["properties"]:
        assert field in text


def bound(body: Any) -> None:
    """Keep generated requests short and have streams among them; wrong values stay wrong."""
    if not isinstance(body, dict):
        return
    for field, most in MOST.items():
        value = body.get(field)
        if type(value) is int and (value > most or value == -1):
            body[field] = most
    if all(body.get(field) is None for field in ("max_tokens", "max_completion_tokens", "n_predict")):
        body["max_tokens"] = 4
    for field in ("max_time", "t_max_predict_ms"):
        value = body.get(field)
        if type(value) in (int, float) and value > 0:  # 504 would be right for a time that is over
            body[field] = 1e6
    if "stream" not in body:
        body["stream"] = len(body) % 2 == 0  # generated less often than it matters


@described.parametrize()
@settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
def test_generated_requests_get_described_answers(case: schemathesis.Case, tiny_server: ServerProcess) -> None:
    bound(case.body)
    case.call_and_validate(
        base_url=tiny_server.url,
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
        timeout=60,
    )


def test_the_server_is_well_after_all_that(tiny_server: ServerProcess) -> None:
    tiny_server.wait_until_idle()
    assert tiny_server.get("/health").status_code == 200
    assert "failed unexpectedly" not in tiny_server.log
    assert "Traceback" not in tiny_server.log
