import gc
import threading
import time
import weakref
from queue import SimpleQueue

import pytest

from typebar.engine.engine import Engine
from typebar.engine.params import SamplingParams
from typebar.engine.worker import Worker
from typebar.errors import TypebarError
from typebar.model.load import load_model

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, ignore_eos=True)


@pytest.fixture
def worker(tiny_path):
    worker = Worker(Engine(load_model(tiny_path, threads=1)))
    yield worker
    worker.close()


def submit(worker, id, prompt=(1, 2, 3), params=GREEDY):
    outbox = SimpleQueue()
    worker.submit(worker.new(id, list(prompt), params), outbox.put)
    return outbox


def drain(outbox, timeout=30):
    tokens = []
    while True:
        output = outbox.get(timeout=timeout)
        tokens += output.token_ids
        if output.finish_reason is not None:
            return tokens, output


def test_many_threads_get_their_own_answers(worker):
    expected = {n: drain(submit(worker, f"solo{n}", [n, n + 1]))[0] for n in range(8)}
    found, errors = {}, []

    def ask(n):
        try:
            for turn in range(5):
                found[n, turn] = drain(submit(worker, f"{n}-{turn}", [n, n + 1]))[0]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert all(found[n, turn] == expected[n] for n in range(8) for turn in range(5))


def test_abort_ends_a_request_with_a_last_output(worker):
    outbox = submit(worker, "long", params=ENDLESS)
    outbox.get(timeout=30)
    worker.abort("long")
    _, last = drain(outbox)
    assert last.finish_reason == "abort" and 0 < last.summary.completion_tokens < 2045
    worker.abort("long")
    worker.abort("never there")
    assert drain(submit(worker, "next"))[1].finish_reason == "length"
    assert worker.stats().running == 0


def test_same_id_twice_is_an_error_of_the_second_only(worker):
    first, second = submit(worker, "same", params=ENDLESS), submit(worker, "same")
    _, last = drain(second)
    assert last.finish_reason == "error" and "already running" in last.summary.error
    worker.abort("same")
    assert drain(first)[1].finish_reason == "abort"


def test_receiver_that_fails_harms_nobody(worker):
    def fail(output):
        raise ValueError("receiver")

    worker.submit(worker.new("bad", [1], GREEDY), fail)
    assert len(drain(submit(worker, "good"))[0]) == 20


def test_close_ends_what_runs_and_refuses_more(worker):
    outbox = submit(worker, "long", params=ENDLESS)
    outbox.get(timeout=30)
    worker.close()
    assert drain(outbox)[1].finish_reason == "abort"
    assert not worker.is_alive
    with pytest.raises(TypebarError, match="closed"):
        submit(worker, "late")
    worker.close()


def test_failure_of_the_engine_reaches_everyone(worker, monkeypatch):
    outbox = submit(worker, "long", params=ENDLESS)
    outbox.get(timeout=30)

    def broken():
        raise AssertionError("a bug")

    monkeypatch.setattr(worker.engine, "step", broken)
    assert drain(outbox)[1].finish_reason == "error"
    worker._thread.join(30)
    with pytest.raises(TypebarError, match="the engine failed: a bug"):
        submit(worker, "late")


def test_idle_worker_uses_no_cpu(worker):
    drain(submit(worker, "once"))
    time.sleep(0.2)
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.02


def test_forgotten_worker_ends_its_thread(tiny_path):
    worker = Worker(Engine(load_model(tiny_path, threads=1)))
    thread, gone = worker._thread, weakref.ref(worker)
    del worker
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()
