"""The same question over every route that answers, with the answers in one form."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from server_process import ServerProcess
from websockets.sync.client import connect

CHAT, COMPLETION, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
WEBSOCKET = "/v1/ws"

# Every way to an answer: route and whether it is a stream.
WAYS = [(route, stream) for route in (CHAT, COMPLETION, NATIVE) for stream in (False, True)] + [(WEBSOCKET, True)]

# Draws from the model's own distribution; the routes have defaults of their own.
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
GREEDY = {"temperature": 0}


@dataclass
class Answer:
    """`pieces`: the text as it came; `data`: the bytes of its tokens, where log-probabilities were asked for."""

    pieces: list[str] = field(default_factory=list)
    reason: str = ""
    stop_reason: Any = None
    data: list[bytes] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def body(server: ServerProcess, route: str, content: str, top: int | None = None, **fields: Any) -> dict[str, Any]:
    """The request for an answer to `content` on this route, of the same prompt on all; `top`: alternatives a token."""
    if route in (CHAT, WEBSOCKET):
        fields |= {} if top is None else {"logprobs": True, "top_logprobs": top}
        return {"messages": user(content), **fields}
    if top is not None:
        fields["logprobs" if route == COMPLETION else "n_probs"] = top
    return {"prompt": prompt_ids(server, user(content)), **fields}


def prompt_ids(server: ServerProcess, messages: Any, **fields: Any) -> list[int]:
    """The prompt of a conversation."""
    response = server.post("/tokenize", {"messages": messages, **fields})
    assert response.status_code == 200, response.text
    ids: list[int] = response.json()["tokens"]
    return ids


def ask(
    server: ServerProcess, content: str, route: str = CHAT, stream: bool = False, top: int | None = None, **fields: Any
) -> Answer:
    request = body(server, route, content, top, **fields)
    answer = Answer()
    if route == WEBSOCKET:
        for frame in websocket_turn(server, request):
            if frame["type"] == "delta":
                answer.pieces.append(frame["text"])
            elif frame["type"] == "done":
                [choice] = frame["choices"]
                answer.reason, answer.stop_reason = choice["finish_reason"], choice["stop_reason"]
    elif stream:
        for event in server.events(route, request):
            if event != "[DONE]":
                _add(answer, route, event)
    else:
        response = server.post(route, request)
        assert response.status_code == 200, response.text
        _add(answer, route, response.json())
    return answer


def websocket_turn(server: ServerProcess, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The frames of one chat, up to its end."""
    with connect(f"{server.url.replace('http', 'ws', 1)}{WEBSOCKET}", max_size=None) as socket:
        socket.send(json.dumps({"type": "chat", **request}))
        while True:
            frame = json.loads(socket.recv(timeout=120))
            yield frame
            if frame["type"] in ("done", "error"):
                return


def _add(answer: Answer, route: str, value: dict[str, Any]) -> None:
    """Take in a whole response or a chunk of a stream."""
    if route == NATIVE:
        answer.pieces.append(value["content"])
        answer.data += [bytes(entry["bytes"]) for entry in value.get("completion_probabilities", ())]
        if value["stop"]:
            answer.reason = {"eos": "stop", "word": "stop", "limit": "length"}[value["stop_type"]]
            answer.stop_reason = value["stopping_word"] or None
        return
    for choice in value["choices"]:
        message = choice.get("delta") or choice.get("message") or {}
        answer.pieces.append(choice["text"] if route == COMPLETION else message.get("content") or "")
        answer.reason = choice["finish_reason"] or answer.reason
        answer.stop_reason = choice.get("stop_reason") or answer.stop_reason
        if route == CHAT and choice["logprobs"]:
            answer.data += [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]]
