"""Answers of a model of random weights, which says anything, kept to a form."""

import itertools
import json
import sys
import threading

import jsonschema
import numpy as np
import pytest
from drive import Driven

from tiny_model import CONTROL_TOKENS
from typebar import _native
from typebar.engine import guidance
from typebar.engine.grammar import KEPT_GRAMMARS, LIMITS, Grammars
from typebar.engine.guidance import SPECIAL, GrammarError, Matcher, Vocabulary
from typebar.engine.structured import MAX_GRAMMAR_BYTES, StructuredOutputsParams
from typebar.errors import ParameterError, TypebarError
from typebar.model.gguf import GGUFFile
from typebar.text.tokenizer import Tokenizer

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer", "minimum": 0, "maximum": 99},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
            },
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
# All but two end within some hundred tokens, whatever is drawn.
SCHEMAS = {
    "enum": {"enum": ["red", 7, None, True, {"a": [1]}, "龘🫠", ""]},
    "const": {"const": {"say": '"hi"\n'}},
    "string": {"type": "string", "maxLength": 6},
    "exact string": {"type": "string", "minLength": 3, "maxLength": 3},
    "pattern": {"type": "string", "pattern": r"^[a-c]{2}-\d{3}$"},
    "loose pattern": {"type": "string", "pattern": "ab", "maxLength": 8},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "integer": {"type": "integer", "minimum": -123, "maximum": 42},
    "number": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    "boolean or null": {"type": ["boolean", "null"]},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [{"const": 1}, {"const": "b"}], "items": False, "minItems": 2},
    "closed": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, 'b "c"': {"enum": [1]}, "龘": {"type": "null"}, "": {"const": 0}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "typed rest": {"type": "object", "additionalProperties": {"enum": [1, 2]}, "maxProperties": 1},
    "nested": {
        "type": "object",
        "properties": {"p": {"type": "object", "properties": {"q": {"type": "array", "items": {"enum": [0, 1]},
                             "maxItems": 2}}, "required": ["q"], "additionalProperties": False}},
        "required": ["p"],
        "additionalProperties": False,
    },
    "any of": {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 2}]},
    "all of": {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]},
    "nothing in it": {"type": "object", "properties": {}, "additionalProperties": False},
    "recursion": TREE,
    "definitions": {
        "definitions": {"a/b~c%": {"enum": ["x"]}},
        "type": "object",
        "properties": {"e": {"$ref": "#/definitions/a~1b~0c%25"}, "f": {"anyOf": [{"const": 1}, {"const": 2}]},
                       "g": {"$ref": "#/properties/f/anyOf/1"}},
        "required": ["e", "f", "g"],
        "additionalProperties": False,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tiny_path):
    return Driven(tiny_path, threads=2, max_model_len=1024, max_step_tokens=96)


@pytest.fixture(scope="module")
def tokenizer(tiny_path):
    return Tokenizer.from_gguf(GGUFFile.open(tiny_path).metadata)


@pytest.fixture(scope="module")
def grammars(tokenizer):
    return Grammars(tokenizer)


def form(schema):
    return StructuredOutputsParams(json=schema)


def accepts(grammars, tokenizer, wanted, text):
    """Whether the masks lead through the tokens of `text` to an end."""
    end = min(tokenizer.end_ids)
    constraint = grammars.compile(wanted).constraint(tokenizer.end_ids)
    for token in [*text.encode(), None]:
        mask = constraint.mask(may_end=True)
        if token is None or mask is None:
            return token is None and (mask is None or is_set(mask, end))
        [id] = [id for id in range(256) if tokenizer.token_bytes(id) == bytes([token])]
        if not is_set(mask, id):
            return False
        constraint.advance(id)


def is_set(mask, token):
    return bool(mask[token // 32] >> (token % 32) & 1)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_fits_its_schema(tiny, name):
    schema = SCHEMAS[name]
    ids = [
        tiny.add(range(40), structured_outputs=form(schema), temperature=temperature, seed=seed, max_tokens=600,
                 ignore_eos=seed % 2 == 0)
        for temperature in (0.0, 1.0, 100.0) for seed in range(8)
    ]  # fmt: skip
    tiny.finish()
    texts = [tiny.texts[id] for id in ids]
    for id, text in zip(ids, texts, strict=True):
        if tiny.last[id].finish_reason == "length" and name in ("typed rest", "recursion"):
            continue  # a key may be of any length, a tree of any depth
        assert tiny.last[id].finish_reason == "stop", text
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    if "const" not in schema and name not in ("nothing in it", "tuple"):
        assert len(set(texts)) > 1


def test_the_model_chooses_among_what_fits(tiny):
    """Every text of a choice is drawn, and no other."""
    choice = ["yes", "no", "yes!", "never", "<|im_end|>", 'a "b"\n', "龘"]
    ids = [
        tiny.add(range(10), structured_outputs=StructuredOutputsParams(choice=choice), temperature=1.5, seed=seed,
                 ignore_eos=False)
        for seed in range(200)
    ]  # fmt: skip
    tiny.finish()
    assert {tiny.texts[id] for id in ids} == set(choice)
    assert {tiny.last[id].finish_reason for id in ids} == {"stop"}


def test_regex_is_the_whole_answer(tiny):
    ids = [
        tiny.add(range(10), structured_outputs=StructuredOutputsParams(regex=r"[0-9]{3}-(ab|c/d)?"), seed=seed,
                 temperature=1.0, ignore_eos=False)
        for seed in range(50)
    ]  # fmt: skip
    tiny.finish()
    assert {tiny.texts[id][3:] for id in ids} == {"-", "-ab", "-c/d"}
    assert all(tiny.texts[id][:3].isdigit() for id in ids)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"minimum": -5}, range(-5, 201)),
        ({"minimum": -123, "maximum": 42}, range(-123, 43)),
        ({"minimum": 3}, range(3, 201)),
        ({"exclusiveMinimum": 0}, range(1, 201)),
        ({"minimum": 9, "maximum": 10}, range(9, 11)),
        ({"multipleOf": 7}, range(-196, 201, 7)),
    ],
)
def test_bounds_of_integers_are_exact(grammars, tokenizer, limits, expected):
    wanted = form({"type": "integer", **limits})
    taken = [n for n in range(-200, 201) if accepts(grammars, tokenizer, wanted, str(n))]
    assert taken == list(expected)
    for text in ("-", "01", "+1", "1.5", "1e2", "", " 1", "1 "):
        assert not accepts(grammars, tokenizer, wanted, text)


def test_any_character_may_stand_in_a_text_or_a_schema(grammars, tokenizer):
    for text in ("\0", "a\0b", "龘🫠", "\x7f\x1b", '"\\'):
        assert accepts(grammars, tokenizer, StructuredOutputsParams(choice=[text, "c"]), text)
        quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")  # as llguidance writes it
        assert accepts(grammars, tokenizer, form({"const": text}), quoted)
        assert not accepts(grammars, tokenizer, StructuredOutputsParams(choice=[text]), text[:-1])
    assert accepts(grammars, tokenizer, StructuredOutputsParams(regex=r"a\x00b"), "a\0b")


def test_white_space_is_bounded(grammars, tokenizer):
    wanted = StructuredOutputsParams(json_object=True)
    for text in ('{"a":1}', '{"a": [1, 2], "b": {}}', '{\n  "a": [\n    1\n  ]\n}', "{ }", "{}"):
        assert accepts(grammars, tokenizer, wanted, text), text
    for text in (
        ' {"a":1}',
        '{"a":1} ',
        '{"a":1}\n',
        '{"a":  1}',
        '{\n\n"a":1}',
        '{\n        "a":1}',
        '{\t"a":1}',
        "[]",
        "1",
    ):
        assert not accepts(grammars, tokenizer, wanted, text), text
    given = form({"type": "object", "x-guidance": {"whitespace_flexible": True, "lenient": True}})
    assert not accepts(grammars, tokenizer, given, "{   }")


@pytest.mark.parametrize("wanted", [{"json_object": True}, {"json": {}}, {"regex": "(?s:.)*"}, {"regex": ".*<.*"}])
def test_tokens_that_are_no_text_are_never_allowed(tiny, wanted):
    """Control tokens and padding, also where their text would fit; end tokens only where the text is complete."""
    tokenizer, spec = tiny.engine.model.tokenizer, tiny.engine.model.spec
    added = set(tokenizer.control_tokens.values())
    assert len(added) == len(CONTROL_TOKENS)
    constraint = tiny.engine.model.grammars.compile(StructuredOutputsParams(**wanted)).constraint(frozenset())
    seen = 0
    for character in '{"a<|im_end|>':
        mask = constraint.mask(may_end=True)
        if mask is None or not is_set(mask, (token := tokenizer.encode(character)[0])):
            break
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[: spec.vocab_size]
        allowed = set(np.flatnonzero(bits).tolist())
        assert not allowed & added
        assert all(tokenizer.token_bytes(id) for id in allowed)
        constraint.advance(token)
        seen += 1
    assert seen >= 4
    id = tiny.add(range(20), structured_outputs=StructuredOutputsParams(**wanted), temperature=1.0, seed=3,
                  max_tokens=300, skip_special_tokens=False, logit_bias=dict.fromkeys(added, 100.0))  # fmt: skip
    tiny.finish()
    *body, last = tiny.tokens[id]
    assert not set(body) & added
    if tiny.last[id].finish_reason == "length":
        assert last not in added


def test_answer_ends_where_nothing_can_follow(tiny):
    """At once, whatever min_tokens and ignore_eos say, and its last token is one of the text."""
    for params in ({}, {"ignore_eos": True}, {"ignore_eos": False, "min_tokens": 20}):
        id = tiny.add(range(9), structured_outputs=form({"enum": ["abc"]}), logprobs=1, **params)
        tiny.finish()
        assert (tiny.texts[id], tiny.last[id].finish_reason) == ('"abc"', "stop")
        assert b"".join(map(tiny.engine.model.tokenizer.token_bytes, tiny.tokens[id])) == b'"abc"'
        assert len(tiny.logprobs[id]) == len(tiny.tokens[id])


def test_min_tokens_holds_back_the_end_of_a_text_that_may_go_on(tiny):
    end = min(tiny.engine.model.tokenizer.end_ids)
    wanted = StructuredOutputsParams(regex="[ab]*")
    drawn = tiny.ask(range(9), structured_outputs=wanted, ignore_eos=False, min_tokens=9, logit_bias={end: 100.0})
    assert (len(drawn), drawn[-1]) == (10, end)
    id = tiny.add(range(9), structured_outputs=wanted, ignore_eos=True, max_tokens=30, logit_bias={end: 100.0})
    tiny.finish()
    assert (tiny.last[id].finish_reason, len(tiny.texts[id])) == ("length", 30)


def test_end_of_a_text_and_stop_tokens_wait_for_the_form(tiny):
    end = min(tiny.engine.model.tokenizer.end_ids)
    id = tiny.add(range(9), structured_outputs=form({"type": "boolean"}), ignore_eos=True, stop_token_ids=[end],
                  logit_bias={end: 100.0})  # fmt: skip
    tiny.finish()
    assert tiny.texts[id] in ("true", "false")


def test_stop_string_and_max_tokens_cut_a_form(tiny):
    whole = form({"enum": ["the quick brown fox jumps"]})
    id = tiny.add(range(9), structured_outputs=whole, stop=["own fox"])
    tiny.finish()
    assert (tiny.texts[id], tiny.last[id].finish_reason, tiny.last[id].stop_reason) == (
        '"the quick br',
        "stop",
        "own fox",
    )
    id = tiny.add(range(9), structured_outputs=whole, max_tokens=5)
    tiny.finish()
    assert (tiny.last[id].finish_reason, len(tiny.tokens[id])) == ("length", 5)
    assert '"the quick brown fox jumps"'.startswith(tiny.texts[id])


def test_free_answers_beside_constrained_ones_are_as_alone(tiny):
    prompts = [[n * 7 % 250, 5, 9, n] * 9 for n in range(4)]
    tiny.forget()
    alone = [tiny.ask(prompt) for prompt in prompts]
    seeded = tiny.ask(prompts[0], structured_outputs=form(TREE), temperature=1.0, seed=5, max_tokens=60)
    tiny.forget()
    free, bound = [], []
    for number, prompt in enumerate(prompts):
        free.append(tiny.add(prompt))
        bound.append(tiny.add(prompt, structured_outputs=form(TREE), temperature=1.0, seed=5 + number, max_tokens=60))
        tiny.step()
    tiny.finish()
    assert [tiny.tokens[id] for id in free] == alone
    assert tiny.tokens[bound[0]] == seeded


def test_masks_agree_with_penalties_and_filters(tiny):
    params = {"repetition_penalty": 1.4, "frequency_penalty": 1.0, "presence_penalty": 1.0, "top_k": 3, "top_p": 0.5,
              "min_p": 0.2, "temperature": 0.9, "logprobs": 3}  # fmt: skip
    for seed in range(10):
        id = tiny.add(range(30), structured_outputs=form(SCHEMAS["closed"]), seed=seed, max_tokens=300, **params)
        tiny.finish()
        jsonschema.validate(json.loads(tiny.texts[id]), SCHEMAS["closed"])
        assert all(np.isfinite(entry.logprob) for entry in tiny.logprobs[id])


def test_only_those_that_have_a_mask_are_constrained(tiny):
    from typebar.engine.params import SamplingParams

    def is_constrained(**params):
        return tiny.engine.new("x", [1], SamplingParams(**params)).is_constrained

    assert not is_constrained()
    assert is_constrained(min_tokens=2)
    assert is_constrained(structured_outputs=StructuredOutputsParams(json_object=True))


def test_a_ban_that_leaves_nothing_is_an_error_of_that_answer(tiny):
    tokenizer = tiny.engine.model.tokenizer
    bias = {token: -100.0 for token in range(288) if tokenizer.token_bytes(token).startswith(b'"')}
    bad = tiny.add(range(9), structured_outputs=form({"const": "a"}), logit_bias=bias)
    good = tiny.add(range(9), structured_outputs=form({"const": "a"}))
    tiny.finish()
    assert tiny.last[bad].finish_reason == "error"
    assert tiny.texts[good] == '"a"'


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "foo"}, {"properties": {"foo": "bar"}}, {"not": {}}, {"type": "array", "uniqueItems": True},
        {"if": {"type": "string"}, "then": {"maxLength": 3}}, {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 4}, {"$ref": "#/$defs/none"}, {"$ref": "http://127.0.0.1:1/x"},
        {"$ref": "#"}, {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "string", "pattern": "("}, {"type": "string", "pattern": "a(?=b)"},
        {"type": "string", "pattern": r"(a)\1"},
        {"type": "string", "pattern": "(" * 2000 + ")" * 2000}, {"type": "string", "format": "no such"},
        {"multipleOf": True},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"allOf": [{"anyOf": [{"properties": {f"{n}{c}": {}}} for c in "ab"]} for n in range(20)]},
    ],
)  # fmt: skip
def test_schema_that_cannot_be_kept_to_is_refused_with_the_reason(tiny, schema):
    with pytest.raises(GrammarError, match=r"^structured_outputs\.json cannot be kept to: .") as caught:
        tiny.add([1], structured_outputs=form(schema))
    assert len(str(caught.value)) < 400
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("regex", ["(?:)", "^$", "a{0}"])
def test_form_that_only_the_empty_text_fits_is_refused(tiny, regex):
    with pytest.raises(GrammarError, match="only the empty text fits it"):
        tiny.add([1], structured_outputs=StructuredOutputsParams(regex=regex))


def nested(depth):
    schema = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def patterns(count, word, tail=""):
    return {word: [{"type": "string", "pattern": f".*{number}.*{tail}"} for number in range(count)]}


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({}, ""), ({"json_object": False}, ""), ({"json": {}, "regex": "a"}, ""), ({"json_object": 1}, ".json_object"),
        ({"json": "{"}, ".json"), ({"json": "[1]"}, ".json"), ({"json": [1]}, ".json"),
        ({"json": {"const": {1}}}, ".json"), ({"json": {"const": float("nan")}}, ".json"),
        ({"json": nested(64)}, ".json"), ({"json": nested(5000)}, ".json"), ({"json": nested(63)}, None),
        ({"json": {"enum": ["x" * MAX_GRAMMAR_BYTES]}}, ".json"),
        ({"json": {"multipleOf": 7919 * 7907}}, ".json"), ({"json": {"multipleOf": 0.00079}, "regex": None}, None),
        ({"json": {"allOf": [{"multipleOf": 997}, {"multipleOf": 0.991}]}}, ".json"),
        ({"json": {"properties": {"a": {"multipleOf": -10001}}}}, ".json"), ({"json": {"multipleOf": 0.0}}, ".json"),
        ({"json": {"type": "integer", "multipleOf": 3000017, "$defs": {"a": {"multipleOf": 0}}}}, ".json"),
        ({"json": {"allOf": [{"multipleOf": 1}, {"multipleOf": 5e-324}]}}, ".json"),
        ({"json": {"multipleOf": float("inf")}}, ".json"), ({"json": {"multipleOf": 4}}, None),
        ({"json": {"multipleOf": 10**5000}}, ".json"), ({"json": {"enum": [[10**300] * 1000] * 2}}, ".json"),
        ({"json": {"龘" * (MAX_GRAMMAR_BYTES // 3): 1}}, ".json"), ({"json": {"enum": [1] * 10**7}}, ".json"),
        ({"json": {"enum": [[1] * 10**4] * 10**4}}, ".json"), ({"json": " " * MAX_GRAMMAR_BYTES + "{}"}, ".json"),
        ({"json": {"enum": ["x" * (MAX_GRAMMAR_BYTES - 200)]}}, None), ({"json": {1: 2}}, None),
        ({"json": {"const": "\ud800"}}, ".json"), ({"json": {"\udc00": 1}}, ".json"),
        ({"json": '{"const": "\\ud800"}'}, ".json"), ({"json": '{"const": "\0"}'}, ".json"),
        ({"choice": ["a", "\ud800"]}, ".choice"), ({"choice": ["x" * MAX_GRAMMAR_BYTES]}, ".choice"),
        ({"choice": itertools.repeat("a")}, ".choice"), ({"choice": map(str, range(1000))}, None),
        ({"regex": "a\0b"}, ".regex"), ({"regex": "\udfff"}, ".regex"),
        ({"choice": []}, ".choice"), ({"choice": ""}, ".choice"), ({"choice": ["a", 1]}, ".choice"),
        ({"choice": [""]}, ".choice"), ({"choice": ["a"] * 1001}, ".choice"), ({"regex": ""}, ".regex"),
        ({"regex": 1}, ".regex"), ({"regex": "a?" * 2049}, ".regex"), ({"regex": "a?" * 2048}, None),
        ({"json": patterns(11, "allOf")}, ".json"), ({"json": patterns(10, "allOf")}, None),
        ({"json": {**patterns(11, "anyOf"), "$ref": "#"}}, ".json"), ({"json": patterns(64, "anyOf")}, None),
        ({"json": patterns(65, "anyOf")}, ".json"), ({"json": patterns(3, "anyOf", "a?" * 700)}, ".json"),
        ({"json": {"patternProperties": {str(number): {} for number in range(65)}}}, ".json"),
        ({"json": {"allOf": [patterns(9, "anyOf"), {"format": "date"}, {"format": "time"}]}}, ".json"),
        ({"json": {"properties": {"pattern": {"properties": {"format": {}}}}}}, None),
    ],
)  # fmt: skip
def test_forms_are_checked(wanted, field):
    if field is None:
        StructuredOutputsParams(**wanted)
        return
    with pytest.raises(ParameterError) as caught:
        StructuredOutputsParams(**wanted)
    assert caught.value.field == f"structured_outputs{field}"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 10**9}, {"type": "string", "minLength": 10**6},
        {"type": "array", "items": {"type": "string", "pattern": "^a{1,30}$"}, "minItems": 10**4},
        {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
        {"type": "string", "pattern": "^(a|b)*a(a|b){40}$"}, {"enum": [f"number {n}" for n in range(8000)]},
        {"properties": {f"p{n}": {"type": "integer"} for n in range(1500)}},
        {"type": "string", "pattern": "|".join(f"[a-z]*{n}" for n in range(300))},
    ],
)  # fmt: skip
def test_large_forms_are_followed_or_end_with_an_error(tiny, schema):
    """Within llguidance's limits of work, which count steps and no time."""
    id = tiny.add(range(9), structured_outputs=form(schema), temperature=1.0, seed=1, max_tokens=40)
    free = tiny.add(range(9), max_tokens=10)
    tiny.finish()
    assert tiny.last[id].finish_reason in ("stop", "length", "error")
    assert tiny.last[free].finish_reason == "length"


def test_compiled_forms_are_kept_while_they_are_held(grammars):
    first = grammars.compile(form({"const": "first"}))
    for number in range(40):
        grammars.compile(form({"const": number}))
    assert grammars.compile(form({"const": "first"})) is first


def test_forms_used_last_are_kept(grammars):
    for number in range(KEPT_GRAMMARS):
        grammars.compile(form({"const": f"kept {number}"}))
    for _ in range(3 * KEPT_GRAMMARS):
        assert grammars.known(form({"const": "kept 0"}))
    assert grammars.known(form({"const": "kept 1"}))
    grammars.compile(form({"const": "another"}))
    assert grammars.known(form({"const": "kept 0"}))
    assert grammars.known(form({"const": "kept 2"})) is None


def test_an_answer_has_a_matcher_of_its_own_from_its_first_draw(tiny, monkeypatch):
    clones = []
    clone = Matcher.clone
    monkeypatch.setattr(Matcher, "clone", lambda matcher: clones.append(matcher) or clone(matcher))
    id = tiny.add([9, 5] * 100, structured_outputs=form({"const": "a"}))
    tiny.step()
    assert (tiny.tokens[id], clones) == ([], [])  # the prompt is computed in steps of 96 tokens
    tiny.finish()
    assert (tiny.texts[id], len(clones)) == ('"a"', 1)


def test_what_would_follow_the_last_token_is_not_worked_out(tiny, monkeypatch):
    """So that a limit of its work is none of this answer."""
    monkeypatch.setitem(LIMITS, "max_lexer_states", 200)
    wanted = form({"type": "string", "minLength": 900})
    long = tiny.add(range(9), structured_outputs=wanted, max_tokens=300)
    tiny.finish()
    assert tiny.last[long].finish_reason == "error"
    assert "structured_outputs cannot be followed further: " in tiny.last[long].summary.error
    short = tiny.add(range(9), structured_outputs=wanted, max_tokens=len(tiny.tokens[long]))
    tiny.finish()
    assert (tiny.last[short].finish_reason, tiny.tokens[short]) == ("length", tiny.tokens[long])


def test_many_threads_may_use_one_grammar(grammars, tokenizer):
    wanted = form(SCHEMAS["nested"])
    failures = []

    def use():
        for _ in range(20):
            if not accepts(grammars, tokenizer, wanted, '{"p": {"q": [0, 1]}}'):
                failures.append(1)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("origin", [None, __file__, _native.__file__])
def test_a_library_that_is_missing_or_another_is_told_with_the_remedy(monkeypatch, origin):
    monkeypatch.setattr(guidance, "_library_path", lambda: origin)
    with pytest.raises(TypebarError, match=r"llguidance .*pip install 'llguidance>=1\.9,<1\.10'"):
        guidance._library.__wrapped__()


def test_fields_that_have_moved_are_noticed(grammars, monkeypatch):
    monkeypatch.setattr(guidance, "DEFAULTS", (2000, 2000))
    with pytest.raises(TypebarError, match=r"fields .* have moved; pip install 'llguidance>=1\.9,<1\.10'"):
        grammars.compile(form({"const": "moved"}))


def test_others_get_on_while_a_vocabulary_is_built():
    """It takes a third of a second for as many tokens as a model has; the GIL is free meanwhile."""
    letters = [bytes(three) for three in itertools.islice(itertools.product(range(33, 127), repeat=3), 150_000)]
    tokens = [SPECIAL + b"end", *letters]

    def gets_a_turn():
        begun, built = threading.Event(), threading.Event()

        def build():
            begun.set()
            Vocabulary(tokens, 0)
            built.set()

        thread = threading.Thread(target=build)
        thread.start()
        begun.wait()
        was_built = built.is_set()
        thread.join()
        return not was_built

    Vocabulary(tokens[:9], 0)  # reading the library gives turns away too
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # a thread gives its turn away of its own, or not before it is done
    try:
        assert any(gets_a_turn() for _ in range(20))  # on a busy machine a third of a second may be too short for one
    finally:
        sys.setswitchinterval(interval)
