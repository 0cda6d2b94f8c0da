r"""From what people write to one form of it: unicode to LaTeX, layout commands dropped, shorthands spelled out.

Stage: rewards, `math`. In: an answer as text (LaTeX, plain, unicode, Chinese punctuation). Out: text in the small
dialect that `shapes` and `grammar` read. Nothing is dropped that carries meaning: signs, brackets, exponents, words.
"""

from __future__ import annotations

import functools
import re
import unicodedata

_VULGAR = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5"}
_VULGAR |= {"⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8"}
_GREEK_WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho"
_GREEK = tuple(_GREEK_WORDS.split())
_SYMBOLS = {
    **{chr(0x3B1 + i): f"\\{name} " for i, name in enumerate(_GREEK)},
    **{"σ": r"\sigma ", "τ": r"\tau ", "φ": r"\phi ", "ϕ": r"\phi ", "χ": r"\chi ", "ψ": r"\psi ", "ω": r"\omega "},
    **dict.fromkeys("−–‐‑‒﹣➖", "-"),
    **dict.fromkeys("×·⋅∙∗✕•", r"\cdot "),
    **dict.fromkeys("∪⋃", r"\cup "),
    **dict.fromkeys("∅⌀", r"\emptyset "),
    **dict.fromkeys("⟨〈", r"\langle "),
    **dict.fromkeys("⟩〉", r"\rangle "),
    **{
        "÷": "/",
        "∞": r"\infty ",
        "≤": r"\le ",
        "⩽": r"\le ",
        "≥": r"\ge ",
        "⩾": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
    },
    **{"∈": r"\in ", "ℝ": r"\mathbb{R}", "±": r"\pm ", "∓": r"\mp ", "∩": r"\cap ", "°": r"^\circ ", "º": r"^\circ "},
    **{"℃": r"^\circ C", "√": r"\sqrt ", "∛": r"\sqrt[3]", "∖": r"\setminus ", "…": r"\ldots ", "⋯": r"\ldots "},
    **{
        "。": ".",
        "、": ",",
        "【": "[",
        "】": "]",
        "∣": "|",
        "′": "'",
        "’": "'",
        "⁄": "/",
        "∑": r"\sum ",
        "∏": r"\prod ",
    },
    **{"\u00a0": r"\,", "\u2009": r"\,", "\u202f": r"\,", "\u2002": " ", "\u3000": " ", "\x0crac": r"\frac"},
}
_SYMBOL = re.compile("|".join(re.escape(s) for s in _SYMBOLS))
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n")

_GROUPED = re.compile(  # separators of thousands: 10,\!080  1\,000\,000  1{,}024  12 345
    r"(?<![\w.])(\d{1,3})((?:(?:,\\!\s*|\\[,;: !]|\{,\}|[ ~])\d{3})+)(?![\d]|\s*/)"
)
_LAYOUT = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|boldsymbol|bm|mathbf|pmb|phantom"
    r"|enspace|quad|qquad|hfill|hspace\{[^{}]*\}|label\{[^{}]*\}|tag\*?\{[^{}]*\}|allowbreak|nonumber|cal|it|rm|bf)"
    r"(?![A-Za-z])\.?|(?<!\\)\\[,;:!>\s]|~|\\\$(?=\s*$)"
)
_RENAMED = {
    **{"dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "leq": "le"},
    **{"leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "varnothing": "emptyset", "times": "cdot"},
    **{"ast": "cdot", "div": "/", "lvert": "|", "rvert": "|", "vert": "|", "lbrace": "{", "rbrace": "}", "mid": "|"},
    **{
        "lbrack": "[",
        "rbrack": "]",
        "lparen": "(",
        "rparen": ")",
        "backslash": "setminus",
        "bigcup": "cup",
        "dots": "ldots",
    },
    **{"cdots": "ldots", "dotsc": "ldots", "simeq": "approx", "thickapprox": "approx", "degree": "circ", "lt": "<"},
    **{"gt": ">", "sim": "approx", "doteq": "approx", "varphi": "phi", "varepsilon": "epsilon", "mbox": "text"},
    **{
        "textbf": "text",
        "textit": "text",
        "textrm": "text",
        "hbox": "text",
        "operatorname": "mathrm",
        "mathit": "mathrm",
    },
    **{"mathsf": "mathrm", "Reals": "mathbb{R}", "R": "mathbb{R}", "infin": "infty", "Vert": "|", "lor": "text{ or }"},
    **{"land": "text{ and }", "vee": "text{ or }", "wedge": "text{ and }", "And": "text{ and }", "arcsec": "asec"},
}
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_UPRIGHT = re.compile(r"\\mathrm\s*\{\s*([^{}]*?)\s*\}")
_FRACTION_OF_UNITS = re.compile(r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}")
_DEGREE = re.compile(r"\^?\s*(?:\{\s*\\degrees?\s*\}|\\degrees?(?![A-Za-z]))")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\s*\\(?:overline|bar|dot)\s*\{\s*(\d{1,30})\s*\}")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)")
_TEXT_OF_MATHS = re.compile(r"\\text\s*\{\s*([-+.\d,/]+|[ie])\s*\}")  # \text{5}: upright, but no words
_CODE = re.compile(r"\*\*(?=[^*])")
_NAMED_WORDS = "e i d sin cos tan cot sec csc log ln lg exp gcd lcm max min mod"
_NAMED = frozenset(_NAMED_WORDS.split())
_NAMED = _NAMED | {"arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "Re", "Im", "det", "tr", "adj", "sgn"}


def _upright(match: re.Match[str]) -> str:
    name = match[1]
    if name in ("e", "i", "d"):
        return f" {name} "
    return f"\\{name} " if name in _NAMED else f"\\text{{{name}}}"


def _repeating(match: re.Match[str]) -> str:
    r"""Spells a repeating decimal as a fraction: `0.1\overline{6}` is 15 / 90."""
    whole, once, again = match[1] or "0", match[2], match[3]
    if len(whole) + len(once) > 100:
        return match.group()
    over = int(whole + once + again) - int(whole + once)
    return f"\\frac{{{over}}}{{{10 ** len(once) * (10 ** len(again) - 1)}}}"


def _renamed(match: re.Match[str]) -> str:
    new = _RENAMED.get(match[1])
    if new is None:
        return match.group()
    if new in ("{", "}"):
        return f"\\{new}"
    return f"\\{new}" if new[0].isalpha() else f"{new} "


def _ungroup(match: re.Match[str]) -> str:
    return match[1] + "".join(re.findall(r"\d{3}", match[2]))


@functools.lru_cache(maxsize=4096)
def normalise(text: str) -> str:
    r"""Returns the answer in the dialect that is read from here on; idempotent on what needs nothing.

    Args:
        text: An answer by itself: the content of a box, a tag, a sentence's end, with or without `$...$`.
    """
    for character, fraction in _VULGAR.items():
        text = text.replace(character, f" {fraction} ")
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda m: f"^{{{m.group().translate(_SUPERSCRIPTS)}}}", text)
    text = re.sub(r"[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+", lambda m: f"_{{{m.group().translate(_SUBSCRIPTS)}}}", text)
    text = _SYMBOL.sub(lambda m: _SYMBOLS[m.group()], text)
    text = unicodedata.normalize("NFKC", text)
    text = _unwrap(text.strip())
    text = _GROUPED.sub(_ungroup, text)
    text = _LAYOUT.sub(" ", text).replace("\\{}", "")
    text = _REPEATING.sub(_repeating, _DEGREE.sub(r"^\\circ ", text))
    text = _TIMES_TEN.sub(r" \\cdot ", text)
    text = _COMMAND.sub(_renamed, text)
    text = _UPRIGHT.sub(_upright, text)
    text = _FRACTION_OF_UNITS.sub(r"\\text{\1/\2}", text)
    text = _TEXT_OF_MATHS.sub(r" \1 ", text)
    text = _CODE.sub("^", text)
    text = re.sub(r"(?<![\\A-Za-z])sqrt\b", r"\\sqrt", text)
    return re.sub(r"\s+", " ", text).strip()


def _unwrap(text: str) -> str:
    """Drops what stands around an answer: dollars, display delimiters, Markdown's stars, a box, final punctuation."""
    for _ in range(8):
        before = text
        text = text.strip().strip("`").strip()
        if len(text) > 4 and text.startswith("**") and text.endswith("**"):
            text = text[2:-2]
        text = re.sub(r"(?<!\\)[.,;:]+$", "", text).rstrip() if not text.endswith(("...", "ldots")) else text
        for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            if len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
                inner = text[len(opening) : len(text) - len(closing)]
                if opening not in inner and not inner.endswith("\\"):
                    text = inner
        boxed = re.match(r"\\(?:boxed|fbox)\s*\{(.*)\}$", text, re.DOTALL)
        if boxed and "boxed" not in boxed[1]:
            text = boxed[1]
        if text == before:
            break
    # a formula amid words: `$x$ and $y$`; a dollar before a number is money
    return re.sub(r"\$(?!\s*\d)|(?<=[^\s\\])\$(?=\s|$|[,.;)])", " ", text) if text.count("$") > 1 else text
