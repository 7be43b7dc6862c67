"""Small programs in Python with checks, in the form of HumanEval and easier."""

from __future__ import annotations

from typebar.eval.problems import CodeProblem, Problem

# A signature with its docstring, and the body of check(f).
_PROBLEMS = [
    (
        '''def fizzbuzz(n: int) -> list[str]:
    """The words for 1 to n: "Fizz" for multiples of 3, "Buzz" for multiples of 5, "FizzBuzz" for multiples of both,
    otherwise the number itself as text.
    """
''',
        """
    assert f(5) == ["1", "2", "Fizz", "4", "Buzz"] and f(0) == []
    assert f(15)[14] == "FizzBuzz" and f(30)[29] == "FizzBuzz" and len(f(30)) == 30
""",
    ),
    (
        '''def is_palindrome(text: str) -> bool:
    """Whether text reads the same backwards, ignoring case and spaces."""
''',
        """
    assert f("Never odd or even") is True and f("typebar") is False and f("") is True
""",
    ),
    (
        '''def gcd(a: int, b: int) -> int:
    """The greatest common divisor of two positive integers."""
''',
        """
    assert f(12, 18) == 6 and f(7, 13) == 1 and f(100, 10) == 10 and f(270, 192) == 6
""",
    ),
    (
        '''def primes_below(n: int) -> list[int]:
    """All prime numbers smaller than n, in ascending order."""
''',
        """
    assert f(20) == [2, 3, 5, 7, 11, 13, 17, 19] and f(2) == [] and f(3) == [2] and len(f(1000)) == 168
""",
    ),
    (
        '''def word_counts(text: str) -> dict[str, int]:
    """How often each word occurs; words are separated by white space and compared in lower case."""
''',
        """
    assert f("a B a b A") == {"a": 3, "b": 2} and f("") == {} and f("one  two") == {"one": 1, "two": 1}
""",
    ),
    (
        '''def run_length(text: str) -> list[tuple[str, int]]:
    """Runs of equal characters as (character, length), in order: "aab" gives [("a", 2), ("b", 1)]."""
''',
        """
    assert f("aab") == [("a", 2), ("b", 1)] and f("") == [] and f("xyx") == [("x", 1), ("y", 1), ("x", 1)]
""",
    ),
    (
        '''def roman(n: int) -> str:
    """The Roman numeral of n, 1 to 3999, as in 4 = "IV" and 1994 = "MCMXCIV"."""
''',
        """
    assert [f(n) for n in (1, 4, 9, 40, 90, 400, 900)] == ["I", "IV", "IX", "XL", "XC", "CD", "CM"]
    assert f(1994) == "MCMXCIV" and f(3999) == "MMMCMXCIX" and f(58) == "LVIII"
""",
    ),
    (
        '''def transpose(rows: list[list[int]]) -> list[list[int]]:
    """Rows become columns. All rows are equally long."""
''',
        """
    assert [list(row) for row in f([[1, 2, 3], [4, 5, 6]])] == [[1, 4], [2, 5], [3, 6]]
    assert [list(row) for row in f([[7]])] == [[7]]
""",
    ),
    (
        '''def is_balanced(text: str) -> bool:
    """Whether the brackets ()[]{} in text are closed in the right order. Other characters do not matter."""
''',
        """
    assert f("a(b[c]{d})") is True and f("(]") is False and f("((") is False and f(")") is False and f("") is True
""",
    ),
    (
        '''def digit_sum(n: int) -> int:
    """The sum of the decimal digits of a non-negative integer."""
''',
        """
    assert f(0) == 0 and f(12345) == 15 and f(999) == 27 and f(10**20) == 1
""",
    ),
    (
        '''def merge_sorted(a: list[int], b: list[int]) -> list[int]:
    """One ascending list with all numbers of two ascending lists."""
''',
        """
    assert f([1, 3, 5], [2, 3, 9]) == [1, 2, 3, 3, 5, 9] and f([], [4]) == [4] and f([], []) == []
""",
    ),
    (
        '''def fibonacci(n: int) -> int:
    """The n-th Fibonacci number, with fibonacci(0) = 0 and fibonacci(1) = 1."""
''',
        """
    assert [f(n) for n in range(10)] == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34] and f(90) == 2880067194370816120
""",
    ),
]


def code_problems() -> list[CodeProblem]:
    """In order."""
    problems = []
    for prompt, checks in _PROBLEMS:
        name = prompt.split("(")[0].removeprefix("def ")
        problems.append(CodeProblem(name, prompt, f"def check(f):{checks}", name))
    return problems


def read() -> list[Problem]:
    """The same, as they are asked."""
    return [problem.problem() for problem in code_problems()]
