import json
import os
import re
import socket
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from commands import typebar
from serving_tables import preset_table, settings_table

from typebar.cli.layers import resolve
from typebar.cli.settings import PANELS, SETTINGS, parse_size
from typebar.config import CHAT_SAMPLING, EngineConfig
from typebar.errors import ParameterError
from typebar.presets import PRESETS
from typebar.server.settings import SAMPLING_FIELDS, ServerSettings

SERVING = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
SECRET = "sk-do-not-show-me"
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("TYPEBAR_") or "CACHE" in name}


def settings(environment=None, **flags):
    return resolve(flags, environment or {})


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "server.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Paths of a certificate, its key, another key, and the first key with a passphrase."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key, other, locked = (str(folder / name) for name in ("cert.pem", "key.pem", "other.pem", "locked.pem"))
    for command in (
        f"req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {cert} -days 2 -subj /CN=localhost",
        f"genrsa -out {other} 2048",
        f"rsa -in {key} -aes256 -passout pass:secret -out {locked}",
    ):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True)
    return cert, key, other, locked


def test_without_anything_it_is_a_chat_on_loopback():
    assert settings() == ServerSettings(sampling=CHAT_SAMPLING)
    assert settings().host == "127.0.0.1" and settings().is_loopback


def test_flag_over_environment_over_file_over_preset(toml):
    path = toml('preset = "throughput"\nmax-queue = 7\nstep_ms = 70\nmin_p = 0.1')
    environment = {"TYPEBAR_CONFIG": path, "TYPEBAR_STEP_MS": "80", "TYPEBAR_MIN_P": "0.2"}
    result = settings(environment, min_p=0.3)
    assert result.sampling["min_p"] == 0.3
    assert result.engine.step_ms == 80
    assert result.max_queue == 7
    assert result.engine.max_num_seqs == PRESETS["throughput"].values["max_num_seqs"]
    assert result.port == 8000


def test_preset_and_config_are_taken_by_the_same_order(toml):
    path = toml('preset = "qa"')
    assert settings(config=path).sampling["temperature"] == 0
    assert settings({"TYPEBAR_PRESET": "code"}, config=path).sampling["temperature"] == 0.3
    assert settings({"TYPEBAR_PRESET": "code"}, config=path, preset="chat").sampling == CHAT_SAMPLING
    assert settings({"TYPEBAR_CONFIG": "/nowhere.toml"}, config=path).sampling["temperature"] == 0


def test_every_setting_can_come_from_everywhere(toml, certificate, tmp_path):
    cert, key, *_ = certificate
    keys = tmp_path / "keys"
    keys.write_text("k2")
    values = {
        "model": "m", "served_model_name": ("a", "b"), "strict_model": True, "quantization": "q8", "max_model_len": 77,
        "threads": 1, "max_num_seqs": 3, "max_queue": 0, "kv_memory": 1 << 30, "step_ms": 33.5, "request_timeout": 9.0,
        "kv_dtype": "q8",
        "stall_timeout": 8.0, "drain": 0.0, "host": "::1", "port": 0, "max_body": 4096, "read_timeout": 1.0,
        "num_speculative_tokens": 1, "write_timeout": 2.0, "sse_ping": 3.0, "api_key": ("k1",),
        "api_key_file": str(keys),
        "allowed_host": ("h.example", "::1", "[::1]:80", "h:81"), "cors_origin": ("*", "tauri://localhost"),
        "ssl_certfile": cert, "ssl_keyfile": key, "temperature": 0.1, "top_p": 0.2, "top_k": 3,
        "min_p": 0.4, "repetition_penalty": 1.2, "max_tokens": 5, "log_format": "json", "log_level": "debug",
        "log_prompts": True, "preset": "code",
    }  # fmt: skip
    assert values.keys() == SETTINGS.keys() - {"config"}
    written = {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in values.items()}
    environment = {SETTINGS[name].variables[0]: value for name, value in written.items()}
    flags = values | {"kv_memory": "1G", "max_body": "4K"}
    file = "\n".join(f"{name.replace('_', '-')} = {json.dumps(value)}" for name, value in values.items())
    given = settings(**flags)
    assert given == settings(environment) == settings(config=toml(file))
    assert given.api_keys == ("k1", "k2") and given.engine.kv_memory == 1 << 30 and given.max_body == 4096
    default = ServerSettings()
    same = [f.name for f in fields(ServerSettings) if getattr(given, f.name) == getattr(default, f.name)]
    assert same == []


def test_settings_are_those_of_the_dataclasses():
    known = {setting.field for setting in SETTINGS.values()}
    of_server = {field.name for field in fields(ServerSettings)} - {"engine", "sampling"}
    assert of_server | set(SAMPLING_FIELDS) <= known
    elsewhere = {"default_max_model_len", "max_step_tokens", "isa", "screened_head"}
    assert {field.name for field in fields(EngineConfig)} - known == elsewhere
    assert known - of_server - set(SAMPLING_FIELDS) - {field.name for field in fields(EngineConfig)} == {
        "api_key_file", "config", "preset",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("alias", "text", "read"),
    [
        ("MODEL_ID", "org/name", lambda result: result.model),
        ("MAX_MODEL_LEN", "512", lambda result: str(result.engine.max_model_len)),
        ("QUANTIZE", "q8", lambda result: result.engine.quantization),
    ],
)
def test_names_that_containers_use(alias, text, read):
    own = {"MODEL_ID": "MODEL", "QUANTIZE": "QUANTIZATION"}.get(alias, alias)
    assert read(settings({alias: text})) == text
    other = {"org/name": "other", "512": "256", "q8": "q4"}[text]
    assert read(settings({alias: text, f"TYPEBAR_{own}": other})) == other
    assert read(settings({alias: text, f"TYPEBAR_{own}": ""})) == text


def test_environment_of_a_kubernetes_service_is_no_port():
    assert settings({"TYPEBAR_PORT": "tcp://10.0.0.7:80"}).port == 8000


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("ON", True), ("no", False), ("0", False)])
def test_switches_in_the_environment(text, value):
    assert settings({"TYPEBAR_STRICT_MODEL": text}).strict_model is value
    assert settings({"TYPEBAR_STRICT_MODEL": text}, strict_model=not value).strict_model is not value


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512M", 512 << 20), ("2G", 2 << 30), ("64MiB", 64 << 20), ("64 mb", 64 << 20), ("1.5g", 3 << 29),
        ("4096", 4096), ("10k", 10240), ("1T", 1 << 40), ("100B", 100), (str(2**60 + 1), 2**60 + 1),
    ],
)  # fmt: skip
def test_sizes(text, size, toml):
    assert parse_size(text) == size
    assert settings(kv_memory=text) == settings({"TYPEBAR_KV_MEMORY": text})
    assert settings(config=toml(f'kv-memory = "{text}"')).engine.kv_memory == size


@pytest.mark.parametrize("text", ["", "M", "-1M", "1X", "1e9", "1.5.2G", "0x10", "512 M B", "nan", "²"])
def test_sizes_that_are_none(text):
    with pytest.raises(ParameterError, match=r"^--max-body must be a size such as 512M"):
        settings(max_body=text)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs must be"),
        ({"max_num_seqs": 257}, "--max-num-seqs must be at most 256"), ({"step_ms": 0.0}, "--step-ms"),
        ({"step_ms": float("nan")}, "--step-ms"), ({"threads": 0}, "--threads"),
        ({"max_model_len": 1}, "--max-model-len"), ({"quantization": "q3"}, "--quantization must be one of keep"),
        ({"kv_dtype": "q4"}, "--kv-dtype must be one of f16, q8"),
        ({"kv_memory": "0"}, "--kv-memory"), ({"max_body": "10"}, "--max-body must be at least 1024"),
        ({"port": 65536}, "--port"), ({"port": -1}, "--port"), ({"max_queue": -1}, "--max-queue"),
        ({"request_timeout": -1.0}, "--request-timeout"), ({"sse_ping": 0.0}, "--sse-ping"),
        ({"drain": float("inf")}, "--drain"), ({"host": ""}, "--host"), ({"host": "http://x"}, "--host"),
        ({"host": "127.0.0.1:80"}, "--host"), ({"host": "[::1]"}, "--host"),
        ({"allowed_host": ["a/b"]}, "--allowed-host"), ({"allowed_host": ["a:b"]}, "--all"),
        ({"cors_origin": ["https://a.example/"]}, "--cors-origin"), ({"cors_origin": ["a.example"]}, "--cors-origin"),
        ({"cors_origin": ["https://A.example"]}, "--cors-origin"),
        ({"served_model_name": [" "]}, "--served-model-name"),
        ({"log_format": "xml"}, "--log-format must be one of text, json"), ({"log_level": "loud"}, "--log-level"),
        ({"temperature": -1.0}, "--temperature"), ({"top_p": 0.0}, "--top-p"), ({"max_tokens": 0}, "--max-tokens"),
        ({"preset": "fast"}, "--preset must be one of chat, qa"), ({"model": ""}, "--model"),
        ({"config": "/no/such.toml"}, "--config: /no/such.toml cannot be read (No such file or directory)"),
        ({"api_key_file": "/no/such"}, "--api-key-file: /no/such cannot be read"),
    ],
)  # fmt: skip
def test_bad_values_name_their_flag(flags, message):
    with pytest.raises(ParameterError) as error:
        settings(**flags)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TYPEBAR_PORT": "http"}, "TYPEBAR_PORT must be an integer, got 'http'"),
        ({"TYPEBAR_PORT": "70000"}, "TYPEBAR_PORT must be an integer from 0 to 65535"),
        ({"TYPEBAR_STEP_MS": "fast"}, "TYPEBAR_STEP_MS must be a number"),
        ({"TYPEBAR_STRICT_MODEL": "maybe"}, "TYPEBAR_STRICT_MODEL must be true or false"),
        ({"TYPEBAR_KV_MEMORY": "much"}, "TYPEBAR_KV_MEMORY must be a size"),
        ({"MAX_MODEL_LEN": "1"}, "MAX_MODEL_LEN must be at least 2"),
        ({"QUANTIZE": "awq"}, "QUANTIZE must be one of"),
        ({"TYPEBAR_PRESET": "x"}, "TYPEBAR_PRESET must be one of"),
        ({"TYPEBAR_CONFIG": "/no/such.toml"}, "TYPEBAR_CONFIG: /no/such.toml cannot be read"),
    ],
)
def test_bad_values_name_their_variable(environment, message):
    with pytest.raises(ParameterError) as error:
        settings(environment)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-num-seq = 4", ": there is no setting 'max-num-seq'; did you mean max-num-seqs?"),
        ("zzz = 4", ": there is no setting 'zzz'; `typebar serve --help` lists them"),
        ('config = "x.toml"', ": there is no setting 'config'"),
        ("[http]\nport = 1", ": there is no setting 'http'"),
        ("max-queue = 1\nmax_queue = 2", ": max_queue is there twice"),
        ('port = "8000"', ": port must be an integer, got '8000'"),
        ("port = 80.0", ": port must be an integer"),
        ("max-queue = true", ": max-queue must be an integer, got True"),
        ("strict-model = 1", ": strict-model must be true or false"),
        ('step-ms = "60"', ": step-ms must be a number"),
        ("host = 1", ": host must be a string"),
        ("cors-origin = [1]", ": cors-origin must be a string or a list of strings"),
        ("kv-memory = 1.5", ": kv-memory must be a size"),
        ("port = 99999", ": port must be an integer from 0 to 65535"),
        ('preset = "x"', ": preset must be one of"),
        ("port = x\n", ": not TOML: Invalid value (at line 1"),
        ('api-key-file = "/no/such"', ": api-key-file: /no/such cannot be read"),
    ],
)  # fmt: skip
def test_bad_file_names_itself_and_the_key(toml, text, message):
    path = toml(text)
    with pytest.raises(ParameterError) as error:
        settings(config=path)
    assert str(error.value).startswith(path + message)


def test_file_that_is_not_text(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"port = 1 # \xff")
    with pytest.raises(ParameterError, match=r"binary\.toml is not UTF-8 text"):
        settings(config=str(path))


def test_keys_of_flags_environment_and_file(tmp_path, toml):
    file = tmp_path / "keys"
    file.write_text("# laptop\nfirst\n\n  second  \n")
    assert settings(api_key=["a", "b"]).api_keys == ("a", "b")
    assert settings({"TYPEBAR_API_KEY": "a, b,"}).api_keys == ("a", "b")
    assert settings({"TYPEBAR_API_KEY": "a"}, api_key=["b"]).api_keys == ("b",)
    assert settings({"TYPEBAR_API_KEY": "a"}, api_key_file=str(file)).api_keys == ("a", "first", "second")
    assert settings({"TYPEBAR_API_KEY_FILE": str(file)}).api_keys == ("first", "second")
    assert settings(config=toml('api-key = "one,key"')).api_keys == ("one,key",)


@pytest.mark.parametrize("content", ["", "\n\n", "# only a comment\n"])
def test_file_without_a_key_is_refused_by_name(tmp_path, content):
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(ParameterError, match=f"^--api-key-file: {re.escape(str(file))} holds no key"):
        settings(api_key_file=str(file))


def test_separators_without_a_key_do_not_open_the_server():
    with pytest.raises(ParameterError, match=r"^TYPEBAR_API_KEY must be"):
        settings({"TYPEBAR_API_KEY": " , "})


def bad_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"{SECRET} # laptop")
    config = tmp_path / "server.toml"
    config.write_text(f'api-key = [["{SECRET}"]]')
    return {
        "flag": (["--api-key", f"{SECRET} x"], {}, "--api-key must be"),
        "variable": ([], {"TYPEBAR_API_KEY": f"{SECRET}é"}, "TYPEBAR_API_KEY must be"),
        "file": (["--api-key-file", file], {}, f"--api-key-file: a key in {file} must be"),
        "toml": (["--config", config], {}, f"{config}: api-key must be"),
        "other": (["--port", "x"], {"TYPEBAR_API_KEY": SECRET}, "--port"),
        "help": (["--help"], {"TYPEBAR_API_KEY": SECRET}, "--api-key"),
    }


@pytest.mark.parametrize("place", ["flag", "variable", "file", "toml", "other", "help"])
def test_keys_are_never_printed(place, tmp_path):
    arguments, environment, message = bad_keys(tmp_path)[place]
    result = typebar("serve", *arguments, env=CLEAN | environment | {"COLUMNS": "200"})
    assert result.returncode == (0 if place == "help" else 2)
    printed = result.stdout + result.stderr
    assert message in printed and SECRET not in printed and "Traceback" not in printed
    assert SECRET not in repr(settings(api_key=[SECRET]))


def test_certificate_and_key_belong_together(certificate):
    cert, key, other, locked = certificate
    assert settings(ssl_certfile=cert, ssl_keyfile=key).ssl_certfile == cert
    for flags, message in (
        ({"ssl_certfile": cert}, "--ssl-keyfile must be given too"),
        ({"ssl_keyfile": key}, "--ssl-certfile must be given too"),
        ({"ssl_certfile": "/no/such.pem", "ssl_keyfile": key}, "--ssl-certfile must be a file that exists"),
        ({"ssl_certfile": cert, "ssl_keyfile": other}, f"--ssl-certfile must be the certificate (PEM) to {other}"),
        ({"ssl_certfile": cert, "ssl_keyfile": locked}, f"--ssl-certfile must be the certificate (PEM) to {locked}"),
        ({"ssl_certfile": key, "ssl_keyfile": key}, "--ssl-certfile must be the certificate (PEM)"),
    ):
        with pytest.raises(ParameterError) as error:
            settings(**flags)
        assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
        ("192.168.0.5", False), ("example.org", False), ("localhost.example.org", False), ("127.0.0.1.nip.io", False),
    ],
)  # fmt: skip
def test_open_server_is_told_so(host, loopback):
    open_to_all = settings(host=host, port=81)
    assert open_to_all.is_loopback is loopback
    assert settings(host=host, api_key=["k"]).exposure is None
    if loopback:
        assert open_to_all.exposure is None
    else:
        warning = open_to_all.exposure
        assert f"{host} PORT 81" in warning and "--api-key-file" in warning and "TYPEBAR_API_KEY" in warning


def test_open_server_says_so_in_the_log_before_it_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ("serve", "--host", "0.0.0.0", "--port", port)
        result = typebar(*arguments, "--log-format", "json", env=CLEAN)
        with_key = typebar(*arguments, env=CLEAN | {"TYPEBAR_API_KEY": SECRET})
    first, second = result.stderr.splitlines()
    assert "CAN USE THIS SERVER" in str(json.loads(first)) and f"cannot listen on 0.0.0.0:{port}" in second
    assert "CAN USE" not in with_key.stderr and "cannot listen" in with_key.stderr and SECRET not in with_key.stderr
    assert result.returncode == with_key.returncode == 1


@pytest.mark.parametrize("name", PRESETS)
def test_presets_reach_the_engine_and_the_sampler(name):
    result = settings(preset=name)
    for key, value in PRESETS[name].values.items():
        homes = (result.engine, result)
        [found] = [getattr(home, key) for home in homes if hasattr(home, key)] or [result.sampling[key]]
        assert found == value


def test_presets_do_what_they_are_for():
    qa, code, edge = settings(preset="qa"), settings(preset="code"), settings(preset="edge")
    default = settings()
    assert qa.sampling == {"temperature": 0.0, "repetition_penalty": 1.0}
    assert code.sampling["temperature"] == 0.3 and code.sampling["top_k"] == 10
    assert edge.engine.default_max_model_len == 1024 and edge.engine.threads == 2
    assert settings(preset="throughput").engine.max_num_seqs > default.engine.max_num_seqs
    assert settings(preset="long").engine.default_max_model_len == 32768


def test_long_context_ends_at_what_the_model_can(tiny_path):
    from typebar.model.load import load_model

    assert load_model(tiny_path, settings(preset="long").engine).max_model_len == 2048
    assert load_model(tiny_path, settings(preset="edge").engine).max_model_len == 1024
    with pytest.raises(ParameterError, match="max_model_len must be at most 2048"):
        load_model(tiny_path, settings(preset="edge", max_model_len=4096).engine)


def test_help_has_every_flag_in_its_group():
    result = typebar("serve", "--help", env=CLEAN | {"COLUMNS": "160", "NO_COLOR": "1"})
    assert result.returncode == 0
    boxes = re.split(r"\n╭─ ", result.stdout)
    for panel, group in PANELS.items():
        [box] = [box for box in boxes if box.startswith(panel + " ")]
        for setting in group:
            for flag in (setting.flag, *setting.more_flags):
                assert re.search(rf"(?<![\w-]){flag}(?![\w-])", box), flag
            assert not setting.default or setting.default in box


def test_presets_are_listed_on_request():
    result = typebar("serve", "--preset", "help", env=CLEAN)
    assert result.returncode == 0 and not result.stderr
    for name, preset in PRESETS.items():
        assert f"{name}\n    {preset.purpose}\n    {', '.join(preset.flags())}\n" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "http"], "--port"),
        (["--max-num-seqs", "999"], "--max-num-seqs must be at most 256, got 999"),
        (["--kv-memory", "much"], "--kv-memory must be a size"),
        (["one", "--model", "two"], "give one of them"),
        (["--max-num-seq", "4"], "--max-num-seqs"),
        (["one", "two"], "two"),
        (["--preset", "fast"], "--preset must be one of"),
    ],
)
def test_wrong_usage_ends_before_anything_is_loaded(arguments, message):
    result = typebar("serve", *arguments, env=CLEAN)
    assert result.returncode == 2 and not result.stdout
    assert message in result.stderr and "Traceback" not in result.stderr


def test_help_is_quick_to_come():
    code = (
        "import sys; from importlib import import_module; import_module('typebar.cli.serve');"
        "print(*({'numpy', 'starlette', 'uvicorn.config', 'tokenizers'} & sys.modules.keys()))"
    )
    result = subprocess.run([os.sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and result.stdout == "\n", result.stdout + result.stderr


def test_document_has_the_presets_and_every_setting():
    assert preset_table() in SERVING
    for panel in PANELS:
        assert f"### {panel}\n\n{settings_table(panel)}\n" in SERVING


def test_example_file_of_the_document_is_right(toml, tmp_path):
    [example] = re.findall(r"```toml\n(.*?)```", SERVING, re.DOTALL)
    keys = tmp_path / "keys"
    keys.write_text("k")
    result = settings(config=toml(example.replace("/run/secrets/typebar-keys", str(keys))))
    assert result.exposure is None and result.engine.kv_memory == 512 << 20 and result.sampling["top_k"] == 10
