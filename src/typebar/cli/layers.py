"""Flags over environment over TOML file over preset: how `typebar serve` comes to its settings."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from typebar.cli.settings import ENGINE_FIELDS, EXPECTED, SAMPLING, SETTINGS, Setting
from typebar.config import EngineConfig
from typebar.errors import ParameterError
from typebar.presets import DEFAULT_PRESET, PRESETS
from typebar.server.settings import Hidden, ServerSettings


class Given(NamedTuple):
    """A value, and what to call the place that it came from."""

    value: Any
    origin: str


Layer = dict[str, Given]


class SettingError(ParameterError):
    """A setting that cannot be used; the text begins with the place that it came from."""

    def __init__(self, origin: str, problem: str) -> None:
        Exception.__init__(self, origin + problem)
        self.field = origin


def resolve(flags: Mapping[str, Any], environment: Mapping[str, str]) -> ServerSettings:
    """The settings in force. `flags` holds the values of the command line by name; None and () stand for not given.

    Raises ParameterError, which names the flag, variable or key of the file that is wrong, and never shows a key.
    """
    given = from_environment(environment) | from_flags(flags)
    if "config" in given:
        given = from_file(*given["config"]) | given
    preset = given.get("preset", Given(DEFAULT_PRESET, ""))
    return _build(_with_keys_of_file(from_preset(*preset) | given))


def from_flags(flags: Mapping[str, Any]) -> Layer:
    """The command line, where the parser has made numbers of all but sizes."""
    layer = {}
    for name, value in flags.items():
        if value is None or value == ():
            continue
        setting = SETTINGS[name]
        if setting.kind == "size":
            value = _converted(setting, setting.flag, setting.from_text, value)
        layer[name] = Given(tuple(value) if setting.kind == "list" else value, setting.flag)
    return layer


def from_environment(environment: Mapping[str, str]) -> Layer:
    """TYPEBAR_* and the names that containers use. An empty variable counts as not set."""
    layer = {}
    for name, setting in SETTINGS.items():
        variable = next((variable for variable in setting.variables if environment.get(variable)), None)
        if variable is None:
            continue
        text = environment[variable]
        if name == "port" and text.startswith("tcp://"):  # Kubernetes sets it so for a service named typebar
            continue
        layer[name] = Given(_converted(setting, variable, setting.from_text, text), variable)
    return layer


def from_file(path: str, origin: str) -> Layer:
    """A TOML file; `origin` said which."""
    try:
        document = tomllib.loads(_read(path, origin))
    except tomllib.TOMLDecodeError as error:
        raise SettingError(path, f": not TOML: {error}") from error
    layer: Layer = {}
    for key, value in document.items():
        name = key.replace("-", "_")
        setting = SETTINGS.get(name)
        if setting is None or name == "config":
            near = get_close_matches(name, SETTINGS.keys() - {"config"}, n=1)
            advice = f"; did you mean {near[0].replace('_', '-')}?" if near else "; `typebar serve --help` lists them"
            raise SettingError(path, f": there is no setting {key!r}{advice}")
        if name in layer:
            raise SettingError(path, f": {key} is there twice, with - and with _")
        place = f"{path}: {key}"
        layer[name] = Given(_converted(setting, place, setting.from_toml, value), place)
    return layer


def from_preset(name: str, origin: str) -> Layer:
    """What a preset sets."""
    if name not in PRESETS:
        raise ParameterError(origin, f"one of {', '.join(PRESETS)}", name)
    return {key: Given(value, f"preset {name}: {key}") for key, value in PRESETS[name].values.items()}


def _with_keys_of_file(layer: Layer) -> Layer:
    if "api_key_file" not in layer:
        return layer
    path, origin = layer["api_key_file"]
    lines = [line.strip() for line in _read(path, origin).splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise SettingError(origin, f": {path} holds no key; write one a line")
    others = layer.get("api_key")
    if others is None:
        return layer | {"api_key": Given(keys, f"{origin}: a key in {path}")}
    return layer | {"api_key": Given((*others.value, *keys), f"{others.origin} or a key in {path}")}


def _build(layer: Layer) -> ServerSettings:
    engine: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    server: dict[str, Any] = {"sampling": sampling}
    origins = {}
    for name, (value, origin) in layer.items():
        if name in ("config", "preset", "api_key_file"):
            continue
        field = SETTINGS[name].field if name in SETTINGS else name
        origins[field] = origin
        home = engine if name in ENGINE_FIELDS else sampling if name in SAMPLING else server
        home[field] = value
    try:
        return ServerSettings(engine=EngineConfig(**engine), **server)
    except ParameterError as error:
        flags = {setting.field: setting.flag for setting in SETTINGS.values()}
        origin = origins.get(error.field) or flags.get(error.field, error.field)
        raise SettingError(origin, str(error).removeprefix(error.field)) from None


def _converted(setting: Setting, origin: str, convert: Callable[[Any], Any], value: Any) -> Any:
    try:
        return convert(value)
    except ValueError:
        shown = Hidden() if setting.name == "api_key" else value
        raise ParameterError(origin, EXPECTED[setting.kind], shown) from None


def _read(path: str, origin: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except ValueError:
        raise SettingError(origin, f": {path} is not UTF-8 text") from None
    except OSError as error:
        raise SettingError(origin, f": {path} cannot be read ({error.strerror})") from error
