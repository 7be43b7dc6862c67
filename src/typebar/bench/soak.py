"""Many users at once for a long time: some leave at random moments, some ask nonsense, and every answer is checked."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from time import perf_counter
from typing import Literal

import httpx
from websockets.exceptions import WebSocketException

from typebar.bench.client import Client, Json, Reply, Socket
from typebar.bench.gauges import Gauges, read_gauges
from typebar.bench.process import Footprint, footprint
from typebar.bench.verdict import Findings, Sample
from typebar.bench.workload import BAD_FRAMES, Answer, Bad, Chat, Workload, prepare
from typebar.errors import ParameterError, TypebarError

KV_FULL = 0.99
QUIET_EVERY = 60.0  # seconds between moments at which nobody asks and the server must become idle
# Seconds, far above what each should take, because the client shares the processors with the server.
IDLE_WITHIN = 5.0
HEALTH_WITHIN = 5.0
CANCEL_WITHIN = 10.0
TOO_MANY_FAILURES = 200  # then the rest would tell nothing new

Leaving = Literal["closed", "cancelled"]  # the client hangs up, or asks the server to end it


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How long and what. Shares are of 1.

    minutes, requests: whichever comes first; None: no limit. concurrency: users over HTTP, beside `websockets` users
    whose connections stay open. cancel: share of chats whose client leaves at a random moment. bad: share of requests
    that must be refused. long: share of prompts of up to half a context. pool: distinct chats. salted: share of chats
    that may not reuse what is cached, so that the cache fills and evicts. warmup: requests before memory is judged.
    timeout: seconds after which a request counts as stuck. sample_every: seconds between looks at the server.
    """

    minutes: float | None = 20.0
    requests: int | None = None
    concurrency: int = 16
    websockets: int = 5
    cancel: float = 0.3
    bad: float = 0.05
    long: float = 0.15
    salted: float = 0.25
    pool: int = 40
    warmup: int = 200
    timeout: float = 180.0
    sample_every: float = 1.0

    def __post_init__(self) -> None:
        """Raises ParameterError for what cannot be run."""
        for name in ("cancel", "bad", "long", "salted"):
            if not 0 <= getattr(self, name) <= 1:
                raise ParameterError(name, "from 0 to 1", getattr(self, name))
        if self.concurrency + self.websockets < 1:
            raise ParameterError("concurrency", "at least 1 where there are no WebSockets", self.concurrency)
        if self.pool < 1:
            raise ParameterError("pool", "at least 1", self.pool)

    seed: int = 0


class Soak:
    """One run against the server at `url`, whose process is `pid` where it can be watched."""

    def __init__(
        self,
        mix: Mix,
        url: str,
        *,
        pid: int | None = None,
        api_key: str = "",
        progress: Callable[[Findings], None] = lambda findings: None,
    ) -> None:
        self.findings = Findings()
        self._mix, self._url, self._pid, self._api_key = mix, url, pid, api_key
        self._progress = progress
        self._numbers = count(1)
        self._stopping = asyncio.Event()
        self._admitted = asyncio.Event()
        self._admitted.set()
        self._asked = 0
        self._in_flight = 0
        self._typical = 1.0  # seconds of a whole answer, for choosing when to leave
        self._kv_was_full = False
        self._start = 0.0

    async def run(self) -> Findings:
        """Record the answers alone, then soak. The first SIGINT ends it early, with what was seen until then."""
        with self._interruptible():
            async with self._client() as client:
                self._workload = await self._prepare(client)
            self.findings.idle_before = await self._settled()
            self._start = perf_counter()
            async with self._client() as client:
                await self._load(client)
            self.findings.seconds = perf_counter() - self._start
            self.findings.idle_after = await self._settled()
        return self.findings

    def _client(self) -> Client:
        return Client(self._url, self._api_key)

    async def _prepare(self, client: Client) -> Workload:
        preparing = asyncio.create_task(prepare(client, self._mix.pool, self._mix.long, self._mix.seed))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({preparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if preparing.done():
            return preparing.result()
        preparing.cancel()
        await asyncio.wait({preparing})
        raise KeyboardInterrupt

    async def _load(self, client: Client) -> None:
        mix = self._mix
        async with asyncio.TaskGroup() as group:
            watchers = [group.create_task(self._watch(client)), group.create_task(self._pause_now_and_then(client))]
            users = [group.create_task(self._user(client, number)) for number in range(mix.concurrency)]
            users += [group.create_task(self._socket_user(client, number)) for number in range(mix.websockets)]
            await asyncio.wait(users)
            for watcher in watchers:
                watcher.cancel()
        await self._expect_idle(client)
        await self._sample(client)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        usual = signal.getsignal(signal.SIGINT)

        def interrupt() -> None:
            self.findings.interrupted = True
            self._stopping.set()
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, usual)  # a second one ends at once

        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            if not self.findings.interrupted:
                loop.remove_signal_handler(signal.SIGINT)
                signal.signal(signal.SIGINT, usual)

    # Users

    async def _user(self, client: Client, number: int) -> None:
        rng = random.Random(f"http {self._mix.seed} {number}")
        while await self._may_go_on():
            with self._request():
                try:
                    if rng.random() < self._mix.bad:
                        await self._ask_badly(client, rng.choice(self._workload.bad))
                    else:
                        await self._ask(client, rng, rng.choice(self._workload.chats))
                except httpx.TransportError as error:
                    self.findings.failure(f"the connection broke: {error!r}")

    async def _socket_user(self, client: Client, number: int) -> None:
        rng = random.Random(f"websocket {self._mix.seed} {number}")
        try:
            async with client.socket() as socket:
                while await self._may_go_on():
                    if rng.random() < self._mix.bad:
                        with self._request():
                            await self._frame_badly(socket, rng.choice(BAD_FRAMES))
                    for chat in rng.choice(self._workload.conversations):
                        if await self._may_go_on():
                            with self._request():
                                await self._turn(socket, rng, chat)
        except (OSError, WebSocketException) as error:
            self.findings.failure(f"WebSocket {number} was lost: {error!r}")

    async def _ask(self, client: Client, rng: random.Random, chat: Chat) -> None:
        request_id = f"soak-{self._mix.seed}-{next(self._numbers)}"
        stream = rng.random() < 0.7
        reply = Reply()
        body = chat.body | self._salt(rng)
        task = asyncio.create_task(client.chat(body, stream=stream, request_id=request_id, reply=reply))
        leaving: Leaving | None = None
        if rng.random() < self._mix.cancel:
            way: Leaving = "closed" if rng.random() < 0.5 else "cancelled"
            await asyncio.wait({task}, timeout=rng.random() * self._typical)
            leaving = None if task.done() else way
        left = perf_counter()
        if leaving == "closed":
            task.cancel()
        elif leaving == "cancelled":
            await client.cancel(request_id)
        if not await self._has_ended(task, f"{chat.name} ({request_id})"):
            return
        if leaving == "cancelled":
            self._note_cancel(perf_counter() - left)
        if not task.cancelled():
            task.result()
        self._check(chat, reply, leaving)

    async def _turn(self, socket: Socket, rng: random.Random, chat: Chat) -> None:
        """One turn, which may be stopped, or interrupted by another that is then the one to be answered."""
        task = asyncio.create_task(socket.read(await socket.ask(chat.body | self._salt(rng))))
        if rng.random() < self._mix.cancel:
            await asyncio.wait({task}, timeout=rng.random() * self._typical)
            if not task.done():
                left = perf_counter()
                follower = rng.choice(self._workload.chats) if rng.random() < 0.5 else None
                if follower:
                    following = await socket.ask(follower.body)
                else:
                    await socket.stop()
                if not await self._has_ended(task, f"{chat.name} on a WebSocket, interrupted"):
                    raise ConnectionError("an interrupted answer had no end")
                self._note_cancel(perf_counter() - left)
                self._check(chat, task.result(), "cancelled")
                if follower is None:
                    return
                chat, task = follower, asyncio.create_task(socket.read(following))
        if not await self._has_ended(task, f"{chat.name} on a WebSocket"):
            raise ConnectionError("an answer had no end")
        self._check(chat, task.result(), None)

    async def _ask_badly(self, client: Client, bad: Bad) -> None:
        if bad.cut:
            await client.send_half(bad.method, bad.path, bad.content)
            self.findings.counts["refused"] += 1
            return
        status, body = await client.send(bad.method, bad.path, bad.content)
        error = body.get("error")
        if status in bad.statuses and isinstance(error, dict) and error.get("message"):
            self.findings.counts["refused"] += 1
        else:
            self.findings.failure(f"{bad.name}: status {status}, {str(body)[:200]}")

    async def _frame_badly(self, socket: Socket, text: str) -> None:
        reply = await socket.send(text)
        async with asyncio.timeout(self._mix.timeout):
            await socket.read(reply)
        if reply.error.get("message"):
            self.findings.counts["refused"] += 1
        else:
            self.findings.failure(f"the frame {text} was answered with {reply}")

    async def _has_ended(self, task: asyncio.Task[Reply], what: str) -> bool:
        """Wait for an answer, not for ever."""
        await asyncio.wait({task}, timeout=self._mix.timeout)
        if task.done():
            return True
        self.findings.failure(f"stuck: {what} had no end after {self._mix.timeout:.0f} s")
        task.cancel()
        await asyncio.wait({task})
        return False

    def _salt(self, rng: random.Random) -> Json:
        return {"cache_salt": f"{rng.random()}"} if rng.random() < self._mix.salted else {}

    # What came

    def _check(self, chat: Chat, reply: Reply, leaving: Leaving | None) -> None:
        """Compare with the answer that came while nothing else ran; one that was cut short must be its beginning."""
        findings = self.findings
        whole = Answer.of(reply) == chat.answer
        failed = reply.status >= 500 if leaving else reply.status != 200 or bool(reply.error)
        if failed:
            findings.failure(f"{chat.name}: status {reply.status}, {reply.error}")
        elif not (whole if leaving is None else _is_beginning(reply.text, chat.answer.text)):
            findings.wrong_text(f"{chat.name}: {Answer.of(reply)} instead of {chat.answer}")
        elif whole:
            findings.counts["completed"] += 1
            self._typical += 0.05 * (reply.ended - reply.started - self._typical)
            self._note_latencies(reply)
        else:
            findings.counts[leaving or "completed"] += 1
        self._progress(findings)

    def _note_latencies(self, reply: Reply) -> None:
        latencies = self.findings.latencies
        latencies.first_byte.append(reply.ttfb)
        if len(reply.arrivals) > 1:
            latencies.first_text.append(reply.ttft)
            latencies.gap.extend(reply.gaps)

    def _note_cancel(self, seconds: float) -> None:
        self.findings.latencies.cancel.append(seconds)
        if seconds > CANCEL_WITHIN:
            self.findings.failure(f"an answer ended {seconds:.1f} s after it was cancelled")

    # The run

    async def _may_go_on(self) -> bool:
        await self._admitted.wait()
        mix, findings = self._mix, self.findings
        over = mix.minutes is not None and perf_counter() - self._start > 60 * mix.minutes
        enough = mix.requests is not None and self._asked >= mix.requests
        if over or enough or findings.counts["failed"] > TOO_MANY_FAILURES:
            self._stopping.set()
        return not self._stopping.is_set()

    @contextmanager
    def _request(self) -> Iterator[None]:
        self._asked += 1
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    async def _pause_now_and_then(self, client: Client) -> None:
        while True:
            await asyncio.sleep(QUIET_EVERY)
            self._admitted.clear()
            try:
                while self._in_flight:
                    await asyncio.sleep(0.05)
                await self._expect_idle(client)
            finally:
                self._admitted.set()

    async def _expect_idle(self, client: Client) -> None:
        deadline = perf_counter() + IDLE_WITHIN
        while (gauges := await self._gauges(client)).requests and perf_counter() < deadline:
            await asyncio.sleep(0.1)
        if gauges.requests:
            self.findings.failure(
                f"{gauges.running} requests run and {gauges.waiting} wait {IDLE_WITHIN:.0f} s after the last one left"
            )

    # The server

    async def _watch(self, client: Client) -> None:
        while True:
            await self._sample(client)
            await self._expect_health(client)
            await asyncio.sleep(self._mix.sample_every)

    async def _sample(self, client: Client) -> None:
        findings = self.findings
        gauges = await self._gauges(client)
        self._kv_was_full = self._kv_was_full or gauges.kv_usage >= KV_FULL
        seconds = perf_counter() - self._start
        findings.samples.append(Sample(seconds, findings.requests, self._footprint(), gauges, self._kv_was_full))
        if findings.warm is None and self._kv_was_full and findings.requests >= self._mix.warmup:
            findings.warm = len(findings.samples) - 1
        self._progress(findings)

    def _footprint(self) -> Footprint | None:
        try:
            return footprint(self._pid) if self._pid else None
        except TypebarError as error:
            self.findings.failure(str(error))
            self._stopping.set()
            return None

    async def _expect_health(self, client: Client) -> None:
        start = perf_counter()
        try:
            status, _ = await client.send("GET", "/health")
        except httpx.TransportError as error:
            self.findings.failure(f"/health did not answer: {error!r}")
            return
        seconds = perf_counter() - start
        self.findings.latencies.health.append(seconds)
        if status != 200 or seconds > HEALTH_WITHIN:
            self.findings.failure(f"/health: status {status} after {seconds:.1f} s")

    async def _gauges(self, client: Client) -> Gauges:
        try:
            return await read_gauges(client)
        except httpx.HTTPError as error:
            self.findings.failure(f"/metrics did not answer: {error!r}")
            return Gauges()

    async def _settled(self) -> Footprint | None:
        """The idle process, once it has noticed that connections were closed."""
        before, after = None, self._footprint()
        for _ in range(20):
            if after is None or (before and (after.fds, after.threads) == (before.fds, before.threads)):
                break
            await asyncio.sleep(0.25)
            before, after = after, self._footprint()
        return after


def _is_beginning(text: str, whole: str) -> bool:
    """Whether an answer that was cut short began well. Cut within a character, it ends with U+FFFD."""
    return whole.startswith((text, text.rstrip("\ufffd")))
