"""`typebar run`: one prompt, one answer."""

import json
import sys
from time import perf_counter
from typing import Annotated, Any

import typer

from typebar.cli import options
from typebar.config import CHAT_SAMPLING
from typebar.llm import LLM, TextStreamer
from typebar.memory import peak_rss


def run(
    prompt: Annotated[list[str] | None, typer.Argument(help="The question. Text on stdin is put after it.")] = None,
    model: options.Model = None,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = CHAT_SAMPLING["temperature"],
    top_p: options.TopP = CHAT_SAMPLING["top_p"],
    top_k: options.TopK = CHAT_SAMPLING["top_k"],
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = None,
    stop: options.Stop = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with the text, token counts and timings.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr how fast it was.")] = False,
    quant: options.Quant = "keep",
    kv_dtype: options.KvDtype = "f16",
    threads: options.Threads = None,
    max_model_len: options.MaxModelLen = None,
) -> None:
    """Answer one prompt, as it is written. Ctrl-C ends the answer (exit code 130)."""
    params = options.sampling(
        temperature, repetition_penalty, stop, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, max_tokens=max_tokens
    )
    messages = [{"role": "user", "content": _question(" ".join(prompt) if prompt else None)}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    start = perf_counter()
    with options.load(model, quant, kv_dtype, threads, max_model_len) as llm:
        load_s = perf_counter() - start
        with llm.chat(messages, params, stream=True) as answer:
            interrupted = _copy(answer, quiet=as_json)
        report = _report(llm, answer, load_s)
    if as_json:
        options.write(json.dumps(report, ensure_ascii=False) + "\n")
    elif verbose or not options.is_dumb(sys.stderr):
        print(_summary(report), file=sys.stderr)
    if interrupted:
        raise KeyboardInterrupt


def _question(prompt: str | None) -> str:
    piped = options.read_stdin()
    parts = [part for part in (prompt, piped) if part]
    if not parts and prompt is None:
        raise typer.BadParameter('give a prompt, as in: typebar run "Why is the sky blue?", or text on stdin')
    return "\n\n".join(parts)


def _copy(answer: TextStreamer, quiet: bool) -> bool:
    """The answer to stdout. True where Ctrl-C cut it short."""
    last = ""
    try:
        for text in answer:
            if not quiet:
                options.write(text)
                last = text
    except KeyboardInterrupt:
        answer.close()
        return True
    finally:
        if last and not last.endswith("\n"):
            options.write("\n")
    return False


def _report(llm: LLM, answer: TextStreamer, load_s: float) -> dict[str, Any]:
    output = answer.output
    [completion], metrics = output.outputs, output.metrics
    return {
        "text": completion.text,
        "model": llm.model.name,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": len(completion.token_ids),
        "timings": {
            "load_s": round(load_s, 3),
            "ttft_ms": round(metrics.ttft_ms, 1),
            "prefill_tps": round(metrics.prefill_tps, 1),
            "decode_tps": round(metrics.decode_tps, 1),
            "total_ms": round(max(0.0, metrics.finished_time - metrics.arrival_time) * 1e3, 1),
            "peak_rss_mb": round(peak_rss() / 1e6, 1),
        },
    }


def _summary(report: dict[str, Any]) -> str:
    timings = report["timings"]
    return (
        f"[{report['model']}: {report['prompt_tokens']} + {report['completion_tokens']} tokens, "
        f"load {timings['load_s']} s, first token {timings['ttft_ms']:.0f} ms, prefill {timings['prefill_tps']} t/s, "
        f"decode {timings['decode_tps']} t/s, {timings['peak_rss_mb']:.0f} MB, {report['finish_reason']}]"
    )
