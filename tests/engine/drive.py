"""An engine driven by hand: requests in, tokens and texts out, every block accounted for after every step."""

from itertools import count

from typebar.engine.engine import Engine
from typebar.engine.params import SamplingParams
from typebar.model.load import load_model

_ids = count()


class Driven:
    def __init__(self, path, **settings):
        self.engine = Engine(load_model(path, **settings))
        self.tokens, self.texts, self.last, self.logprobs = {}, {}, {}, {}

    def add(self, prompt, **params):
        """Queue a request, greedy unless said otherwise; returns its id."""
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 24, "ignore_eos": True} | params)
        id = f"d{next(_ids)}"
        self.engine.add(self.engine.new(id, list(prompt), params))
        self.tokens[id], self.texts[id], self.logprobs[id] = [], "", []
        return id

    def step(self):
        for output in self.engine.step():
            id = output.request_id
            self.tokens[id] += output.token_ids
            self.texts[id] += output.text
            self.logprobs[id] += output.logprobs
            if output.finish_reason is not None:
                self.last[id] = output
        self.engine.scheduler.check()

    def finish(self):
        steps = 0
        while self.engine.has_work:
            self.step()
            steps += 1
            assert steps < 100_000
        return steps

    def ask(self, prompt, **params):
        """One request alone, to its end; returns its tokens."""
        id = self.add(prompt, **params)
        self.finish()
        return self.tokens[id]

    def forget(self):
        """Empty the prefix cache."""
        self.engine.scheduler.cache.clear()

    @property
    def free(self):
        return self.engine.scheduler.cache.num_available
