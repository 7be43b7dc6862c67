"""Short questions in Chinese, each with one answer that may be written in few ways."""

from __future__ import annotations

import re
import unicodedata
from functools import partial

from typebar.eval.problems import Problem

REQUEST = "请只写出答案，不要解释。"
QUESTIONS = {
    "一年有多少个月？": ("12", "十二"),
    "中国的首都是哪座城市？": ("北京",),
    "水的化学式是什么？": ("H2O",),
    "《西游记》里孙悟空的师父是谁？": ("唐僧", "唐三藏", "玄奘"),
    "地球绕着哪颗恒星转？": ("太阳",),
    "三角形的内角和是多少度？": ("180", "一百八十"),
    "世界上最高的山峰叫什么？": ("珠穆朗玛",),
    "中国最长的河流是哪一条？": ("长江",),
    "日本的首都是哪座城市？": ("东京",),
    "法国的首都是哪座城市？": ("巴黎",),
    "《红楼梦》的作者一般认为是谁？": ("曹雪芹",),
    "一个小时有多少分钟？": ("60", "六十"),
    "7乘以8等于多少？": ("56", "五十六"),
    "100减去37等于多少？": ("63", "六十三"),
    "15加27等于多少？": ("42", "四十二"),
    "农历八月十五是哪个传统节日？": ("中秋",),
    "端午节是为了纪念哪位诗人？": ("屈原",),
    "“床前明月光”是哪位诗人写的？": ("李白",),
    "人体最大的器官是什么？": ("皮肤",),
    "离地球最近的天体是什么？": ("月球", "月亮"),
    "秦朝的第一位皇帝是谁？": ("秦始皇", "嬴政"),
    "化学元素“Fe”是什么金属？": ("铁",),
    "太阳系中体积最大的行星是哪一颗？": ("木星",),
    "蜘蛛有几条腿？": ("8", "八"),
    "英语单词“apple”的中文意思是什么？": ("苹果",),
    "“黑”的反义词是哪个字？": ("白",),
    "水在标准大气压下多少摄氏度沸腾？": ("100", "一百"),
    "世界上面积最大的国家是哪个？": ("俄罗斯",),
    "中国的国宝动物，吃竹子的，是什么？": ("熊猫",),
    "Python语言中，用哪个关键字定义函数？": ("def",),
    "十二生肖中排在第一位的是什么动物？": ("鼠",),
    "相对论是哪位科学家提出的？": ("爱因斯坦",),
}


def read() -> list[Problem]:
    """In order."""
    return [
        Problem(question, [{"role": "user", "content": question + REQUEST}], partial(is_right, answers=answers))
        for question, answers in QUESTIONS.items()
    ]


def is_right(said: str, answers: tuple[str, ...]) -> bool:
    """Whether one of the answers is in what was said, after normalization; a number not within a longer one."""
    text = normalized(said)
    return any(re.search(_pattern(normalized(answer)), text) for answer in answers)


def normalized(text: str) -> str:
    """Compatibility forms (NFKC) in lower case, without white space and punctuation."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(letter for letter in folded if unicodedata.category(letter)[0] not in "ZPC")


def _pattern(answer: str) -> str:
    if answer.isascii() and answer.isdigit():
        return rf"(?<!\d){answer}(?!\d)"
    if set(answer) <= set("一二三四五六七八九十百千"):
        return rf"(?<![一二三四五六七八九十百千]){answer}(?![一二三四五六七八九十百千])"
    return re.escape(answer)
