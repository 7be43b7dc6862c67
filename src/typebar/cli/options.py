"""Options that several commands share, and what they make of them."""

import os
import sys
from typing import Annotated, Any

import typer

from typebar.config import CHAT_SAMPLING
from typebar.engine.params import SamplingParams
from typebar.llm import LLM

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        envvar="TYPEBAR_MODEL",
        help="Catalog name, .gguf file, folder, org/name or URL.",
        show_default=False,
    ),
]
System = Annotated[str | None, typer.Option("--system", "-s", help="System message.")]
MaxTokens = Annotated[
    int | None, typer.Option(help="Longest answer, in tokens. Without it: until the context is full.")
]
Temperature = Annotated[
    float,
    typer.Option(help="0: always the most likely token, without a repetition penalty unless one is given."),
]
TopP = Annotated[float, typer.Option(help="Only the most likely tokens that together have this probability.")]
TopK = Annotated[int, typer.Option(help="Only that many of the most likely tokens; 0: all.")]
MinP = Annotated[float, typer.Option(help="Only tokens at least this likely relative to the best.")]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help=f"Above 1: repeat less. Default: {CHAT_SAMPLING['repetition_penalty']}.", show_default=False),
]
Seed = Annotated[int | None, typer.Option(help="Makes the answer repeatable.")]
Stop = Annotated[list[str] | None, typer.Option(help="End the answer before this text. May be given several times.")]
Quant = Annotated[
    str, typer.Option(envvar="TYPEBAR_QUANTIZATION", help="keep (no weight changes), q8, q6, q5, q4, f32 or auto.")
]
KvDtype = Annotated[
    str,
    typer.Option(envvar="TYPEBAR_KV_DTYPE", help="Keys and values: f16, or q8, 8 bits in about half the memory."),
]
Threads = Annotated[
    int | None, typer.Option(envvar="TYPEBAR_THREADS", help="Default: by affinity, quota and physical cores.")
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(envvar="TYPEBAR_MAX_MODEL_LEN", help="Context in tokens. Default: 4096 or the model's, if smaller."),
]


def sampling(
    temperature: float, repetition_penalty: float | None, stop: list[str] | None, **others: Any
) -> SamplingParams:
    """The parameters of a conversation. ParameterError names what is out of range."""
    if repetition_penalty is None:
        repetition_penalty = CHAT_SAMPLING["repetition_penalty"] if temperature > 0 else 1.0
    return SamplingParams(temperature=temperature, repetition_penalty=repetition_penalty, stop=stop, **others)


def load(model: str | None, quant: str, kv_dtype: str, threads: int | None, max_model_len: int | None) -> LLM:
    """The model of a command that needs one."""
    return LLM(model, quantization=quant, kv_dtype=kv_dtype, threads=threads, max_model_len=max_model_len)


def read_stdin() -> str | None:
    """All of stdin as text, None where it is a terminal or a device such as /dev/null. UsageError if not UTF-8."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"stdin is not UTF-8 text (byte {error.start})") from error
    except OSError:  # closed by the parent
        return None


def words(text: str) -> list[str]:
    """What stands between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def write(text: str) -> None:
    """Text to stdout now, whatever the locale can express."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def is_dumb(stream: Any) -> bool:
    """Whether nobody watches a stream."""
    return not stream.isatty() or os.environ.get("TERM") == "dumb"
