"""`typebar chat`: a conversation in the terminal. The prefix cache keeps what earlier turns computed."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from typebar.cli import options
from typebar.config import CHAT_SAMPLING
from typebar.engine.params import SamplingParams
from typebar.engine.request import ContextLengthError
from typebar.errors import TypebarError
from typebar.llm import LLM
from typebar.outputs import RequestOutput

HELP = """\
/reset         forget the conversation
/system TEXT   set the system message (without TEXT: remove it), and forget the conversation
/stats         tokens and speed of the last answer, and of the engine
/save FILE     write the conversation as JSON
/help          this list
/quit          leave, as does Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several lines."""


def chat(
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
    quant: options.Quant = "keep",
    kv_dtype: options.KvDtype = "f16",
    threads: options.Threads = None,
    max_model_len: options.MaxModelLen = None,
) -> None:
    """Talk with a model in the terminal. /help lists what can be typed beside messages."""
    params = options.sampling(
        temperature, repetition_penalty, stop, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, max_tokens=max_tokens
    )
    with options.load(model, quant, kv_dtype, threads, max_model_len) as llm:
        Conversation(llm, params, system).run()


@dataclass(slots=True)
class Conversation:
    """The loop of a terminal conversation."""

    llm: LLM
    params: SamplingParams
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)
    last: RequestOutput | None = None

    def run(self) -> None:
        """Read and answer until the end of the input or /quit."""
        interactive = sys.stdin.isatty()
        if interactive:
            import readline  # line editing and history in input()

            readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one message

            model = self.llm.model
            _note(f"{model.name}, context {model.max_model_len} tokens. /help for help, Ctrl-D to leave.")
        while True:
            try:
                text = _read_message(interactive)
                if text is None or text.split()[:1] in (["/quit"], ["/exit"]):
                    return
                self.handle(text)
            except EOFError:
                return
            except KeyboardInterrupt:
                _note("\nCtrl-D or /quit leaves.")
            except (TypebarError, OSError) as error:
                if isinstance(error, BrokenPipeError):
                    raise
                _note(f"typebar: {error}")

    def handle(self, text: str) -> None:
        """Answer a message or obey a command."""
        command, _, argument = text.strip().partition(" ")
        match command:
            case "":
                pass
            case "quit" | "exit" if not argument:
                _note("/quit or Ctrl-D leaves.")
            case "/reset":
                self.messages.clear()
                _note("The conversation is forgotten.")
            case "/system":
                self.system = argument.strip() or None
                self.messages.clear()
                _note("The system message is set." if self.system else "The system message is removed.")
            case "/stats":
                self._show_stats()
            case "/save":
                self._save(argument.strip())
            case "/help":
                _note(HELP)
            case _ if command.startswith("/") and "\n" not in text and command[1:].isalpha():
                _note(f"There is no {command}. /help lists what there is.")
            case _:
                self._answer(text)

    @property
    def history(self) -> list[dict[str, str]]:
        """All messages, the system message first."""
        return ([{"role": "system", "content": self.system}] if self.system is not None else []) + self.messages

    def _answer(self, text: str) -> None:
        question = {"role": "user", "content": text}
        try:
            answer = self.llm.chat([*self.history, question], self.params, stream=True)
        except ContextLengthError as error:
            raise TypebarError(f"{error}. /reset begins anew") from error
        with answer:
            try:
                for piece in answer:
                    options.write(piece)
            except KeyboardInterrupt:
                answer.close()
        options.write("\n")
        self.last = answer.output
        self.messages += [question, {"role": "assistant", "content": self.last.outputs[0].text}]
        if self.last.outputs[0].finish_reason == "length" and self.params.max_tokens is None:
            _note("The context is full. /reset begins anew.")

    def _show_stats(self) -> None:
        if self.last is not None:
            metrics = self.last.metrics
            _note(
                f"last answer: {len(self.last.prompt_token_ids)} prompt tokens, {self.last.num_cached_tokens} of them "
                f"kept from before; first token after {metrics.ttft_ms:.0f} ms; {metrics.num_generation_tokens} tokens "
                f"at {metrics.decode_tps:.1f}/s"
            )
        stats, native = self.llm.stats(), self.llm.model.native
        _note(
            f"engine: {stats.requests} requests, {stats.generated_tokens} tokens; {stats.cached_blocks * 16} of "
            f"{stats.kv_blocks * 16} tokens of the KV cache; {native.threads} threads, {native.isa}"
        )

    def _save(self, name: str) -> None:
        if not name:
            _note("Which file? /save FILE")
            return
        path = Path(name).expanduser()
        if not path.parent.is_dir():
            raise TypebarError(f"there is no folder {path.parent}")
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(self.history, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
        _note(f"{len(self.history)} messages are in {path}.")


def _read_message(interactive: bool) -> str | None:
    """A message of one line or more; None at the end of the input."""
    text = _read_line("> " if interactive else "")
    if text is None:
        return None
    if text.strip().startswith('"""'):
        return _read_quoted(text.strip()[3:], interactive)
    while text.endswith("\\"):
        text = text[:-1] + "\n" + (_read_line(". " if interactive else "") or "")
    return text


def _read_quoted(first: str, interactive: bool) -> str:
    lines = [first]
    while not lines[-1].rstrip().endswith('"""'):
        line = _read_line(". " if interactive else "")
        if line is None:
            return "\n".join(lines).strip("\n")
        lines.append(line)
    lines[-1] = lines[-1].rstrip()[:-3]
    return "\n".join(lines).strip("\n")


def _read_line(prompt: str) -> str | None:
    if prompt:
        try:
            return input(prompt)
        except EOFError:
            print()
            return None
    line = sys.stdin.buffer.readline()
    return line.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r") if line else None


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
