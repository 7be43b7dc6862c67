"""The thread that owns the engine. Any thread may hand it requests; each request's outputs go to its own receiver."""

import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import perf_counter

from typebar.engine.engine import Engine
from typebar.engine.generation import Generation
from typebar.engine.params import SamplingParams
from typebar.engine.request import Output
from typebar.engine.stats import Stats
from typebar.errors import TypebarError

log = logging.getLogger(__name__)

Receiver = Callable[[Output], None]


class Worker:
    """Runs an engine in a thread of its own, which sleeps while there is nothing to do.

    A receiver is called in that thread with every output of its request, the last of which has a finish_reason; it must
    return quickly, for example by putting the output into a queue.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._process = os.getpid()
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        self._loop = _Loop(engine, self._inbox)
        self._thread = threading.Thread(target=self._loop.run, name="typebar-engine", daemon=True)
        self._thread.start()
        # Also at interpreter exit: a thread inside the native step must not outlive the interpreter.
        self._finalizer = weakref.finalize(self, _stop, self._inbox, self._thread)

    def new(self, id: str, prompt: list[int], params: SamplingParams) -> Generation:
        """Check a request for the tokens after `prompt` (`params.n` is 1). ValueError where it cannot be served."""
        if os.getpid() != self._process:  # threads do not survive fork()
            raise TypebarError(f"this model belongs to process {self._process}: load one after the fork")
        return self.engine.new(id, prompt, params)

    def submit(self, generation: Generation, receive: Receiver) -> None:
        """Queue a request that `new` made. TypebarError where the engine was closed or has failed."""
        generation.request.timing.arrival = perf_counter()
        with self._loop.closing:  # what is put here is taken before the thread ends, or refused by it
            if self._loop.closed:
                raise TypebarError(self._loop.failure or "the engine is closed")
            self._inbox.put(_Submit(generation, receive))

    def abort(self, id: str) -> None:
        """End a request within a step; its receiver gets a last output. Nothing happens where it has ended."""
        self._inbox.put(_Abort(id))

    def stats(self) -> Stats:
        return self.engine.stats()

    @property
    def is_alive(self) -> bool:
        return self._finalizer.alive and self._thread.is_alive()

    def close(self) -> None:
        """End all requests and the thread, within a step."""
        self._finalizer()


@dataclass(frozen=True, slots=True)
class _Submit:
    generation: Generation
    receive: Receiver


@dataclass(frozen=True, slots=True)
class _Abort:
    id: str


_Command = _Submit | _Abort | None  # None: stop


class _Loop:
    """What the thread does. Holds no reference to the Worker, so that a forgotten one is collected."""

    def __init__(self, engine: Engine, inbox: "SimpleQueue[_Command]") -> None:
        self.engine, self.inbox = engine, inbox
        self.requests: dict[str, _Submit] = {}  # those that have not ended
        self.failure: str | None = None
        self.closing = threading.Lock()
        self.closed = False

    def run(self) -> None:
        try:
            while self._take_commands():
                self._deliver(self.engine.step())
            self._deliver(self.engine.abort_all())
        except Exception as error:
            log.exception("the engine failed")
            self.failure = f"the engine failed: {error}"
            self._deliver([request.generation.end("error", self.failure) for request in self.requests.values()])
        finally:
            with self.closing:
                self.closed = True
            self._refuse_rest()

    def _take_commands(self) -> bool:
        """Apply what is in the inbox, waiting for something where there is no work. False at the end."""
        while True:
            try:
                command = self.inbox.get(block=not self.engine.has_work)
            except Empty:
                return True
            match command:
                case None:
                    return False
                case _Submit():
                    self._add(command)
                case _Abort():
                    if output := self.engine.abort(command.id):
                        self._deliver([output])

    def _add(self, command: _Submit) -> None:
        id = command.generation.request.id
        try:
            self.engine.add(command.generation)
        except ValueError as error:
            _call(command.receive, command.generation.end("error", str(error)))
        else:
            self.requests[id] = command

    def _deliver(self, outputs: list[Output]) -> None:
        for output in outputs:
            done = output.finish_reason is not None
            request = self.requests.pop(output.request_id) if done else self.requests[output.request_id]
            _call(request.receive, output)

    def _refuse_rest(self) -> None:
        while True:
            try:
                command = self.inbox.get_nowait()
            except Empty:
                return
            if isinstance(command, _Submit):
                _call(command.receive, command.generation.end("abort", self.failure))


def _call(receive: Receiver, output: Output) -> None:
    try:
        receive(output)
    except Exception:
        log.exception("the receiver of request %s failed", output.request_id)


def _stop(inbox: "SimpleQueue[_Command]", thread: threading.Thread) -> None:
    inbox.put(None)
    if thread is not threading.current_thread():
        thread.join()
