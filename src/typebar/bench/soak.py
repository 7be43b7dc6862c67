"""Many users at once for a long time: some leave at random moments, some ask nonsense, and every answer is checked."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from time import perf_counter
from typing import Any, Literal

import httpx
from websockets.exceptions import WebSocketException

from typebar.bench.client import Client, Json, Reply, Socket
from typebar.bench.gauges import Gauges, read_gauges
from typebar.bench.mix import Mix
from typebar.bench.process import Footprint, footprint
from typebar.bench.verdict import Findings, Sample
from typebar.bench.workload import BAD_FRAMES, Answer, Bad, Chat, Workload, prepare
from typebar.errors import TypebarError

KV_FULL = 0.99
QUIET_EVERY = 240.0  # seconds between moments at which nobody asks and the server must become idle
# Seconds, far above what each should take, because the client shares the processors with the server.
IDLE_WITHIN = 5.0
HEALTH_WITHIN = 5.0
CANCEL_WITHIN = 10.0
TOO_MANY_FAILURES = 200  # then the rest would tell nothing new

Leaving = Literal["closed", "cancelled"]  # the client hangs up, or asks the server to end it


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
        """Record the answers alone, then soak. SIGINT or SIGTERM ends it early, with what was seen until then."""
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
        """The first SIGINT or SIGTERM asks for an early end; a second one ends at once."""
        loop = asyncio.get_running_loop()
        usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for number, handler in usual.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

        def interrupt() -> None:
            self.findings.interrupted = True
            self._stopping.set()
            restore()

        for number in usual:
            loop.add_signal_handler(number, interrupt)
        try:
            yield
        finally:
            if not self.findings.interrupted:
                restore()

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
                except (httpx.TransportError, OSError) as error:
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
        asking = client.chat(chat.body | self._salt(rng), stream=stream, request_id=request_id, reply=reply)
        async with _running(asking) as task:
            way: Leaving = "closed" if rng.random() < 0.5 else "cancelled"
            leaving = way if await self._leaves(rng, task) else None
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
        async with _running(socket.read(await socket.ask(chat.body | self._salt(rng)))) as task:
            if not await self._leaves(rng, task):
                await self._finish_turn(task, chat, None)
                return
            left = perf_counter()
            follower = rng.choice(self._workload.chats) if rng.random() < 0.5 else None
            if follower:
                following = await socket.ask(follower.body)
            else:
                await socket.stop()
            await self._finish_turn(task, chat, "cancelled")
            self._note_cancel(perf_counter() - left)
        if follower:
            async with _running(socket.read(following)) as task:
                await self._finish_turn(task, follower, None)

    async def _finish_turn(self, task: asyncio.Task[Reply], chat: Chat, leaving: Leaving | None) -> None:
        if not await self._has_ended(task, f"{chat.name} on a WebSocket"):
            raise ConnectionError("an answer had no end")
        self._check(chat, task.result(), leaving)

    async def _leaves(self, rng: random.Random, task: asyncio.Task[Reply]) -> bool:
        """Wait until the moment at which this client leaves, if it does. False where everything has come by then."""
        if rng.random() >= self._mix.cancel:
            return False
        await asyncio.wait({task}, timeout=rng.random() * self._typical)
        return not task.done()

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
        if len(reply.arrivals) > 1:  # a plain answer comes at once
            latencies.first_byte.append(reply.ttfb)
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


@asynccontextmanager
async def _running(asking: Coroutine[Any, Any, Reply]) -> AsyncIterator[asyncio.Task[Reply]]:
    """A task that ends with the block."""
    task = asyncio.create_task(asking)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _is_beginning(text: str, whole: str) -> bool:
    """Whether an answer that was cut short began well. Cut within a character, it ends with U+FFFD."""
    return whole.startswith((text, text.rstrip("\ufffd")))
