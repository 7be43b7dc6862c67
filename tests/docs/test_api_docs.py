"""docs/api.md lists exactly the routes that the server has."""

import re
from pathlib import Path

from typebar.server.routes import OPERATIONS

API = (Path(__file__).resolve().parents[2] / "docs/api.md").read_text(encoding="utf-8")


def test_every_route_is_listed_and_no_other() -> None:
    listed = re.findall(r"^\| `(GET|POST) (\S+)`", API, re.MULTILINE)
    assert listed
    assert sorted(listed) == sorted((operation.method, operation.path) for operation in OPERATIONS)
