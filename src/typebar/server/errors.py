"""What goes wrong in a request, as the JSON that OpenAI clients read."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

# `type` of an error by status, as OpenAI and llama-server name them.
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "permission_error",
    429: "rate_limit_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "timeout_error",
}


class APIError(Exception):
    """A refusal or failure that the client is told of.

    status: of HTTP. message: names the thing and the remedy, and never holds the caller's content or keys.
    param: the field at fault, such as "messages[0].content". code: a word for programs, such as
    "context_length_exceeded". headers: more response headers. extra: more keys of the error object.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        **extra: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}
        self.extra = extra

    def body(self) -> dict[str, Any]:
        """{"error": {"message", "type", "param", "code"}}, OpenAI's form."""
        type = _TYPES.get(self.status, "api_error")
        code = self.code or HTTPStatus(self.status).phrase.lower().replace(" ", "_")
        return {"error": {"message": self.message, "type": type, "param": self.param, "code": code, **self.extra}}
