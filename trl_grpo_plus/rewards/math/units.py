r"""What stands around a value and is no part of it: units, currencies, percent signs, counted nouns, "about".

Stage: rewards, `math`. "35 cm", `15\text{ cm}^2`, `\$18.90`, "12个" and "12 apples" state the numbers 35, 15, 18.9 and
12, as every grader of mathematics has it. Words that change the value ("at least", "or", "thousand", "not") are no
units, and what has them is not a number.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_UNITS = {
    **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), "m"),
    **dict.fromkeys(("cm", "centimeter", "centimeters", "centimetre", "centimetres"), "cm"),
    **dict.fromkeys(("mm", "millimeter", "millimeters", "millimetre", "millimetres"), "mm"),
    **dict.fromkeys(("km", "kilometer", "kilometers", "kilometre", "kilometres"), "km"),
    **dict.fromkeys(("in", "inch", "inches"), "in"),
    **dict.fromkeys(("ft", "foot", "feet"), "ft"),
    **dict.fromkeys(("yd", "yard", "yards"), "yd"),
    **dict.fromkeys(("mi", "mile", "miles"), "mi"),
    **dict.fromkeys(("g", "gram", "grams"), "g"),
    **dict.fromkeys(("kg", "kilogram", "kilograms", "kilos"), "kg"),
    **dict.fromkeys(("mg", "milligram", "milligrams"), "mg"),
    **dict.fromkeys(("lb", "lbs", "pound", "pounds"), "lb"),
    **dict.fromkeys(("oz", "ounce", "ounces"), "oz"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "day"),
    **dict.fromkeys(("week", "weeks"), "week"),
    **dict.fromkeys(("month", "months"), "month"),
    **dict.fromkeys(("year", "years", "yr", "yrs"), "year"),
    **dict.fromkeys(("l", "liter", "liters", "litre", "litres"), "l"),
    **dict.fromkeys(("ml", "milliliter", "milliliters", "millilitre", "millilitres"), "ml"),
    **dict.fromkeys(("mph",), "mi/h"),
    **dict.fromkeys(("kph", "kmph"), "km/h"),
    **dict.fromkeys(("cent", "cents", "\u00a2"), "cent"),
    **dict.fromkeys(("dollar", "dollars", "usd", "$", "bucks"), "$"),
    **dict.fromkeys(("euro", "euros", "eur", "\u20ac"), "\u20ac"),
    **dict.fromkeys(("yuan", "rmb", "cny", "\u00a5", "\u5143"), "\u00a5"),
    **dict.fromkeys(("degree", "degrees", "deg"), "degree"),
    **dict.fromkeys(("radian", "radians", "rad"), "radian"),
    **dict.fromkeys(("percent", "percentage", "pct"), "%"),
    **{
        name.lower(): name
        for name in ("N", "J", "W", "kW", "V", "Pa", "Hz", "kHz", "mol", "kJ", "kN", "MHz", "ha", "mL")
    },
    **{
        name: name
        for name in ("joules", "watts", "volts", "newtons", "acres", "hectares", "gallons", "tons", "tonnes")
    },
}
# Single letters are units only with a space before them: `5 m` is a length, `5m` a product.
# Words that multiply the number before them; "dozen" is left alone, which is counted in as often as by.
_SCALES = {
    "hundred": 2,
    "thousand": 3,
    "million": 6,
    "billion": 9,
    "trillion": 12,
    "\u767e": 2,
    "\u5343": 3,
    "\u4e07": 4,
    "\u4ebf": 8,
}
_SCALE = re.compile(
    r"(?<=\d)\s*(?:\\text\s*\{\s*)?(hundred|thousand|million|billion|trillion|[\u767e\u5343\u4e07\u4ebf](?![\u514b\u7c73]))(?![A-Za-z])"
    r"((?:\s*[A-Za-z\u4e00-\u9fff]++)*+\s*)\}?$"
)
_SINGLE = frozenset("mgslLhNJWVK")
# Words after or before a number that say another value than the number, or no single one.
_MEANINGFUL_WORDS = (
    "or and not no than more less least most fewer over under above below between from to through times "
    "plus minus squared cubed half halves third thirds quarter quarters fourth fourths fifth fifths sixth "
    "tenth tenths hundred hundreds thousand thousands million millions billion billions trillion dozen "
    "dozens pair pairs choose factorial root mod modulo divided multiplied power otherwise if else for "
    "when unless except only with either neither nor but does is are was be by equals equal infinity "
    "infinitely undefined sum product difference number value the where such that given up down remainder "
    "point base january february march april june july august september october november december"
)
_MEANINGFUL = frozenset(_MEANINGFUL_WORDS.split())
_MAX_CHARS = 300
_ABOUT = re.compile(
    r"^(?:\\approx|\\text\{\s*(?:about|approximately|approx\.?|around|roughly|exactly)\s*\}|(?:about|approximately|around"
    r"|roughly|exactly|approx\.?)\b)\s*",
    re.IGNORECASE,
)
_CURRENCY = re.compile(
    r"^([-+]?)\s*(?:\\?\$|([\u20ac\u00a3\u00a5\u20b9])|\\(?:pounds|euro)\b|(?:USD|EUR|Rs\.?|RM|US)\s*\\?\$?"
    r"|\\text\s*\{\s*(?:USD|EUR|Rs\.?|RM|\\?\$)\s*\})"
    r"\s*(?=[-+.\d\\])"
)
_POWER = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
_TEXT_UNIT = re.compile(r"\s*\\text\s*\{([^{}]*)\}" + _POWER + r"\s*$")
_DEGREE_UNIT = re.compile(r"\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ)\s*(?:\\text\s*\{\s*)?([CFK]?)(?:\s*\})?\s*$")
_WORD_UNIT = re.compile(r"(?<=[\d)}\s])\s*((?:[A-Za-z\u00a2\u20ac]++\.?" + _POWER + r"(?:\s*/\s*|\s+|-)?){1,5})$")
_CHINESE_UNIT = re.compile(r"(?<=[\d)}\s])\s*([\u4e00-\u9fff]{1,6}(?:/[\u4e00-\u9fff]{1,4})?)$")
_OHM = re.compile(r"(?<=[\d\s])\s*(?:k|M|\\text\{[kM]\})?\s*\\Omega$")
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")  # of an angle in degrees the sine, no unit
_COUNTED = re.compile(
    r"^(?:\u5171|\u4e00\u5171|\u603b\u5171|\u7b49\u4e8e|\u662f|\u4e3a)\s*(?=[-\d])"
)  # \u5171 12 \u4e2a: 12 in all
_PERCENT = re.compile(r"\s*\\?%\s*$")


class Measured(NamedTuple):
    """A value as text, with what stood around it.

    Args:
        core: The text without units.
        unit: Canonical unit where it is a known one, the words themselves where not, empty where there is none.
        known: Whether the unit is one of measurement, so that another one says something else.
        percent: Whether it is a percentage.
    """

    core: str
    unit: str = ""
    known: bool = False
    percent: bool = False


def _words(text: str) -> tuple[str, bool] | None:
    """Returns (canonical unit, whether it is known) of words that may follow a number; `None` where they say more."""
    text = text.strip().strip(".").strip()
    words = re.findall(r"[^\W\d_]+|[\u00a2$\u20ac\u00a5]", text)
    if not words:
        return ("", False) if not text else None
    if re.search(r"(?<!\^)(?<!\^\{)(?<!\^-)(?<!\^\{-)\d", text) or any(word.lower() in _MEANINGFUL for word in words):
        return None
    known = [
        _UNITS.get(word.lower()) for word in words if word.lower() not in ("per", "square", "cubic", "sq", "cu", "of")
    ]
    if known and all(known):
        power = re.search(r"\^\s*\{?\s*(-?\d)", text)
        exponent = power[1] if power else {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}.get(words[0].lower(), "")
        return "/".join(unit or "" for unit in known) + exponent, True
    return " ".join(words).lower(), False


def measured(text: str) -> Measured:
    """Returns the value and the unit of a normalised answer; the text itself where no unit is recognised."""
    text = text.strip()
    if len(text) > _MAX_CHARS:
        return Measured(text)
    if about := _ABOUT.match(text):
        text = text[about.end() :]
    if counted := _COUNTED.match(text):
        text = text[counted.end() :]
    unit, known, percent = "", False, False
    if currency := _CURRENCY.match(text):
        text = currency[1] + text[currency.end() :]
        unit, known = _UNITS.get(currency[2] or "$", currency[2] or "$"), True
    if (scale := _SCALE.search(text)) and not (scale[2].strip() and _words(scale[2]) is None):
        noun, is_known = _words(scale[2]) or ("", False)
        text = text[: scale.start()] + f" \\cdot 10^{{{_SCALES[scale[1]]}}}"
        unit, known = noun or unit, is_known or known
    for _ in range(3):
        if match := _PERCENT.search(text):
            text, percent = text[: match.start()].strip(), True
        elif (match := _DEGREE_UNIT.search(text)) and not _ANGLE.search(text):
            text, unit, known = text[: match.start()], "degree" + match[1], True
        elif (match := _TEXT_UNIT.search(text)) and match.start() > 0:
            found = _words(match[1] + text[match.end(1) + 1 :])
            if found is None:
                break
            text, unit, known = text[: match.start()], found[0] or unit, found[1]
        elif match := _OHM.search(text):
            text, unit, known = text[: match.start()], "ohm", True
        elif match := _CHINESE_UNIT.search(text):
            text, unit, known = text[: match.start()], _UNITS.get(match[1], match[1]), match[1] in _UNITS
        elif match := _WORD_UNIT.search(text):
            found = _words(match[1])
            single = re.fullmatch(r"[A-Za-z]" + _POWER, match[1].strip())
            if found is None or (single and (match[1].strip()[0] not in _SINGLE or text[match.start(1) - 1] != " ")):
                break
            if not found[1] and len(re.sub(r"[^A-Za-z]", "", match[1])) < 3:
                break  # `2ab` is a product
            if not found[1] and not re.search(r"\d\s*$|\}\s*$", text[: match.start()]):
                break
            text, unit, known = text[: match.start()], found[0], found[1]
        else:
            break
        if unit == "%":
            unit, known, percent = "", False, True
    text = text.strip()
    return Measured(text, unit, known, percent) if text else Measured(text)
