"""The settings of `typebar serve` by the name that flags, environment variables and TOML files share."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from typebar.config import KV_DTYPES, QUANTIZATIONS, EngineConfig
from typebar.presets import DEFAULT_PRESET, PRESETS
from typebar.server.settings import LOG_FORMATS, LOG_LEVELS, ServerSettings

Kind = Literal["text", "list", "integer", "number", "size", "switch"]

EXPECTED: dict[Kind, str] = {
    "text": "a string",
    "list": "a string or a list of strings",
    "integer": "an integer",
    "number": "a number",
    "size": "a size such as 512M, 2G, 64MiB, or a number of bytes",
    "switch": "true or false",
}
ENGINE_FIELDS = {field.name for field in fields(EngineConfig)}

_FIELDS = {"api_key": "api_keys", "allowed_host": "allowed_hosts", "cors_origin": "cors_origins"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """`--a-name`, the environment variable TYPEBAR_A_NAME and the key a-name or a_name of a TOML file.

    more_flags, more_variables: other spellings, the variables in falling order.
    """

    name: str
    kind: Kind
    help: str
    metavar: str | None = None
    more_flags: tuple[str, ...] = ()
    more_variables: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that set it, the first that is not empty wins."""
        return ("TYPEBAR_" + self.name.upper(), *self.more_variables)

    @property
    def field(self) -> str:
        """Its name in ServerSettings, EngineConfig or SamplingParams."""
        return _FIELDS.get(self.name, self.name)

    @property
    def default(self) -> str:
        """The value without any flag, as it is written; empty where `help` says what happens then."""
        home = ServerSettings().engine if self.name in ENGINE_FIELDS else ServerSettings()
        value = PRESETS[DEFAULT_PRESET].values.get(self.name, getattr(home, self.field, None))
        if value is None or isinstance(value, bool | tuple):
            return ""
        if self.kind == "size":
            return f"{value >> 20}M"
        return f"{value:g}" if self.kind == "number" else str(value)

    def from_text(self, text: str) -> Any:
        """The value of an environment variable, or of a flag not parsed yet. ValueError where it does not fit."""
        match self.kind:
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "size":
                return parse_size(text)
            case "switch":
                if (word := text.strip().lower()) not in _SWITCHES:
                    raise ValueError(text)
                return _SWITCHES[word]
            case "list":
                if not (parts := tuple(part.strip() for part in text.split(",") if part.strip())):
                    raise ValueError(text)
                return parts
        return text

    def from_toml(self, value: Any) -> Any:
        """The value of a key in a TOML file. ValueError where it has the wrong type."""
        match self.kind, value:
            case "switch", bool():
                return value
            case _, bool():
                raise ValueError(value)
            case (("integer" | "size"), int()):
                return value
            case "number", int() | float():
                return float(value)
            case "size", str():
                return parse_size(value)
            case "text", str():
                return value
            case "list", str():
                return (value,)
            case "list", list() if all(isinstance(item, str) for item in value):
                return tuple(value)
        raise ValueError(value)


def parse_size(text: str) -> int:
    """Bytes of "512M", "1.5GiB", "64 kb" or "1048576"; units are powers of 1024. ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number, unit = match.groups()
    power = " kmgt".index(unit.lower() or " ")
    return int(number) << 10 * power if number.isdigit() else int(float(number) * 1024**power)


PANELS: dict[str, tuple[Setting, ...]] = {
    "Model": (
        Setting(
            "model", "text", "As the argument MODEL.", "MODEL", more_flags=("-m",), more_variables=("MODEL_ID",),
        ),
        Setting(
            "served_model_name", "list", "Name that clients see, several are possible, the first is reported. Without "
            "it: the model's own.", "NAME",
        ),
        Setting("strict_model", "switch", "Refuse requests for a model of another name."),
        Setting(
            "quantization", "text", "Weights as they are (keep) or requantized at load.", "|".join(QUANTIZATIONS),
            more_flags=("--quant",), more_variables=("QUANTIZE",),
        ),
        Setting(
            "max_model_len", "integer", "Context in tokens, prompt and answer together. Without it: 4096, or what "
            "model and memory allow.", more_variables=("MAX_MODEL_LEN",),
        ),
    ),
    "Scheduling and memory": (
        Setting("threads", "integer", "Without it: by affinity, quota and physical cores."),
        Setting("max_num_seqs", "integer", "Requests that run at the same time."),
        Setting("max_queue", "integer", "Requests that wait for their turn; more get status 429."),
        Setting("kv_memory", "size", "For keys and values. Without it: four full contexts, or what is free."),
        Setting(
            "kv_dtype", "text", "Keys and values in f16, or in 8-bit codes (q8): about half the memory for each token.",
            "|".join(KV_DTYPES),
        ),
        Setting("step_ms", "number", "How long a step may take while somebody waits for a token."),
        Setting(
            "num_speculative_tokens", "integer", "Tokens that a step guesses from the text so far and checks, up to 3, "
            "while one or two requests run; they change no answer. 0: none.",
        ),
        Setting("request_timeout", "number", "Seconds an answer may take from arrival to end; 0: no limit."),
        Setting("stall_timeout", "number", "Seconds without progress of the engine until /health says so; 0: never."),
        Setting("drain", "number", "Seconds that running answers get after SIGTERM or Ctrl-C."),
    ),
    "HTTP": (
        Setting(
            "host", "text", "Address to listen on; 0.0.0.0 or :: for all. Beyond this machine set an API key.",
            "ADDRESS",
        ),
        Setting("port", "integer", "0: any free one."),
        Setting("max_body", "size", "Largest body of a request."),
        Setting("read_timeout", "number", "Seconds for the head and for the body of a request to arrive."),
        Setting("write_timeout", "number", "Seconds until a client is cut that does not read its answer."),
        Setting("sse_ping", "number", "Seconds of silence in a stream until a comment keeps it alive."),
    ),
    "Security": (
        Setting(
            "api_key", "list", "Key that clients must send; several are possible. Other users of the machine can see a "
            "command line: prefer the file or the environment.", "KEY",
        ),
        Setting("api_key_file", "text", "File with one key a line; lines that begin with # are comments.", "FILE"),
        Setting("allowed_host", "list", "Name in the Host header to accept beside localhost and --host.", "HOST"),
        Setting("cors_origin", "list", "Web page that may use the server, as https://chat.example; * for all.", "URL"),
        Setting("ssl_certfile", "text", "Certificate chain (PEM), which makes it HTTPS.", "FILE"),
        Setting("ssl_keyfile", "text", "Private key (PEM) of the certificate, without a passphrase.", "FILE"),
    ),
    "Default sampling": (
        Setting("temperature", "number", "0: always the most likely token."),
        Setting("top_p", "number", "Only the most likely tokens that together have this probability."),
        Setting("top_k", "integer", "Only that many of the most likely tokens; 0: all."),
        Setting("min_p", "number", "Only tokens at least this likely relative to the best."),
        Setting("repetition_penalty", "number", "Above 1: repeat less."),
        Setting("max_tokens", "integer", "For chats that do not say. Without it: until the context is full."),
    ),
    "Logging": (
        Setting("log_format", "text", "Form of the lines on stderr.", "|".join(LOG_FORMATS)),
        Setting("log_level", "text", "The least important that is shown.", "|".join(LOG_LEVELS)),
        Setting("log_prompts", "switch", "Write prompts and answers to the log."),
    ),
    "Settings": (
        Setting(
            "preset", "text", f"{', '.join(PRESETS)}: settings for a purpose, below all others. `--preset help` tells "
            f"what each sets. Default: {DEFAULT_PRESET}.", "NAME",
        ),
        Setting("config", "text", "TOML file whose keys are these flags without --.", "FILE"),
    ),
}  # fmt: skip
SETTINGS = {setting.name: setting for panel in PANELS.values() for setting in panel}
SAMPLING = {setting.name for setting in PANELS["Default sampling"]}
