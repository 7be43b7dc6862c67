"""Every knob of the server once."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typebar.config import EngineConfig
from typebar.engine.params import SamplingParams
from typebar.errors import ParameterError

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")

_NAME = re.compile(r"[^\s:/@\[\]]+")
_NAME_AND_PORT = re.compile(r"(\[[^\s/@\[\]]+\]|[^\s:/@\[\]]+)(:[0-9]{1,5})?")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/A-Z]+")  # browsers send it in lower case
_KEY = re.compile(r"[!-~]+")
_LEAST_SECONDS = {
    "read_timeout": 0.1, "write_timeout": 0.1, "sse_ping": 0.1, "stall_timeout": 0, "request_timeout": 0, "drain": 0,
}  # fmt: skip


class Hidden:
    """Stands in an error for a secret."""

    def __repr__(self) -> str:
        return "one that does not fit and is not shown here"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How `typebar serve` runs. Times in seconds, sizes in bytes. Raises ParameterError that names the field.

    model: as for `typebar run`; None: the default model. served_model_name: the ids under which clients see it (the
    first is reported); empty: the model's own name. sampling: what a chat gets that does not say otherwise, of
    SAMPLING_FIELDS.
    """

    model: str | None = None
    served_model_name: tuple[str, ...] = ()
    strict_model: bool = False
    engine: EngineConfig = field(default_factory=EngineConfig)
    sampling: dict[str, Any] = field(default_factory=dict)

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: tuple[str, ...] = ()  # beside localhost and the bound address
    cors_origins: tuple[str, ...] = ()
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None

    max_queue: int = 64  # requests that wait for a seat; more get 429
    max_body: int = 16 * 1024 * 1024
    read_timeout: float = 30.0  # for the head and for the whole body of a request
    write_timeout: float = 30.0  # for a client that does not read
    request_timeout: float = 0.0  # for an answer from arrival to end; 0: none
    stall_timeout: float = 60.0  # an engine without progress for so long is reported as unhealthy; 0: never
    sse_ping: float = 15.0
    drain: float = 30.0  # what running answers get after SIGTERM; 0: nothing

    log_format: str = "text"
    log_level: str = "info"
    log_prompts: bool = False

    def __post_init__(self) -> None:
        for name in ("model", "ssl_certfile", "ssl_keyfile"):
            self._check(name, getattr(self, name) is None or _is_text(getattr(self, name)), "a non-empty string")
        for name in ("strict_model", "log_prompts"):
            self._check(name, isinstance(getattr(self, name), bool), "true or false")
        self._check("log_format", self.log_format in LOG_FORMATS, f"one of {', '.join(LOG_FORMATS)}")
        self._check("log_level", self.log_level in LOG_LEVELS, f"one of {', '.join(LOG_LEVELS)}")
        self._check_sampling()
        self._check_limits()
        self._check_access()
        self._check_tls()

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can reach the server."""
        address = _address(self.host)
        return self.host.lower() == "localhost" if address is None else address.is_loopback

    @property
    def exposure(self) -> str | None:
        """What an operator must hear whose server anybody on the network can use; None where that is not so."""
        if self.is_loopback or self.api_keys:
            return None
        return (
            f"ANYBODY WHO CAN REACH {self.host} PORT {self.port} CAN USE THIS SERVER: it listens beyond this machine "
            "and asks for no key. Set one with --api-key-file or TYPEBAR_API_KEY, or leave --host at 127.0.0.1"
        )

    def _check_sampling(self) -> None:
        for name in self.sampling:
            self._check("sampling", name in SAMPLING_FIELDS, f"made of {', '.join(SAMPLING_FIELDS)}", name)
        SamplingParams(**self.sampling)

    def _check_limits(self) -> None:
        self._check("port", _is_integer(self.port) and 0 <= self.port <= 65535, "an integer from 0 to 65535")
        self._check("max_queue", _is_integer(self.max_queue) and self.max_queue >= 0, "an integer of at least 0")
        self._check("max_body", _is_integer(self.max_body) and self.max_body >= 1024, "at least 1024 bytes")
        for name, least in _LEAST_SECONDS.items():
            value = getattr(self, name)
            self._check(name, _is_number(value) and value >= least, f"a number of seconds, at least {least}")

    def _check_access(self) -> None:
        ok = _is_text(self.host) and bool(_NAME.fullmatch(self.host) or _address(self.host))
        self._check("host", ok, "a host name or an address, without scheme and port")
        self._check_each("served_model_name", _is_text, "a non-empty string")
        expected = "a host name or an address, with :port or without"
        self._check_each("allowed_hosts", lambda host: _NAME_AND_PORT.fullmatch(host) or _address(host), expected)
        self._check_each("cors_origins", _ORIGIN.fullmatch, "an origin such as https://chat.example (lower case), or *")
        self._check_each("api_keys", _KEY.fullmatch, "made of visible ASCII characters without spaces", Hidden())

    def _check_tls(self) -> None:
        if self.ssl_certfile is None and self.ssl_keyfile is None:
            return
        for name in ("ssl_certfile", "ssl_keyfile"):
            file = getattr(self, name)
            self._check(name, file is not None, "given too, since TLS needs a certificate and its key")
            self._check(name, Path(file).is_file(), "a file that exists")
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.ssl_certfile or "", self.ssl_keyfile, password=lambda: "")
        except (OSError, ValueError) as error:  # SSLError is an OSError; ValueError: a key that needs a passphrase
            expected = f"the certificate (PEM) to {self.ssl_keyfile}, which must be readable and have no passphrase"
            raise ParameterError("ssl_certfile", expected, self.ssl_certfile) from error

    def _check_each(self, name: str, accepts: Callable[[str], object], expected: str, *shown: object) -> None:
        values = getattr(self, name)
        self._check(name, isinstance(values, tuple), "a tuple of strings", *shown)
        for value in values:
            self._check(name, isinstance(value, str) and bool(accepts(value)), expected, *(shown or (value,)))

    def _check(self, name: str, ok: bool, expected: str, *shown: object) -> None:
        if not ok:
            raise ParameterError(name, expected, shown[0] if shown else getattr(self, name))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:  # a name
        return None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
