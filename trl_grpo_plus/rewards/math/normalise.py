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
    **{chr(0x391 + i): f"\\{name} " for i, name in ((2, "Gamma"), (3, "Delta"), (7, "Theta"), (10, "Lambda"))},
    **{"Σ": r"\Sigma ", "Φ": r"\Phi ", "Ψ": r"\Psi ", "Ω": r"\Omega ", "\u2126": r"\Omega ", "∆": r"\Delta "},
    **{"⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil "},
    **dict.fromkeys("\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad", ""),
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
    r"|vec|hat|widehat|overrightarrow|underline|(?:text)?color\{[^{}]*\}|tiny|small|normalsize|large|Large|LARGE|huge|Huge"
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
    **{"colon": ":", "yen": "\u00a5", "euro": "\u20ac", "texteuro": "\u20ac", "textdollar": "$"},
}
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_UPRIGHT = re.compile(r"\\mathrm\s*\{\s*((?:[^{}]|\^\{-?\d\})*?)\s*\}")
_FRACTION_OF_UNITS = re.compile(r"\\frac\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}")
_QUOTIENT_OF_UNITS = re.compile(r"\\text\s*\{([^{}]*)\}\s*/\s*\\text\s*\{([^{}]*)\}")
_OVER = re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}|^([^{}]*)\\over(?![A-Za-z])([^{}]*)$")
_GOES_ON = re.compile(
    r"(?<![\d.])(\d*)\.(\d{0,20}?)(?:(\d)\3{2,20}|(\d{2,20}?)\4{1,10})\s*(?:\\l?dots\b|\.{3,})"
)  # 0.333...
_ONLY_REPEATING = re.compile(r"(?<![\d.])(\d*)\.\((\d{1,30})\)")  # 0.(3); 0.1(6) may be a product
_VECTOR = re.compile(r"<(?=[^<>=]*,)([^<>=]+)>$")
_CHOOSE = re.compile(r"(?<![\w.])(\d+|[a-z]) choose (\d+|[a-z])(?!\w)")
_PREAMBLE = re.compile(  # \text{The answer is } 12, \text{Answer: B}
    r"(?P<text>\\text\s*\{\s*)?(?:the\s+)?(?:final\s+)?(?:answer|result|total|value)s?\s*(?:is|are|:|=)\s*:?\s*"
    r"(?(text)(?P<closed>\})?)\s*(?=\S)",
    re.IGNORECASE,
)
_STATES = re.compile(r"[=<>]|\\[lg]e(?![a-z])")
_SYSTEM = re.compile(  # equations under each other
    r"(?:\\\{\s*)?\\begin\s*\{(?P<name>cases|aligned|align\*?|gathered|split|array)\}(?:\s*\{[clr| ]*\})?"
    r"(?P<body>(?:(?!\\begin).)*?)\\end\s*\{(?P=name)\}",
    re.DOTALL,
)
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
    if name in _NAMED:
        return f"\\{name} "
    return f"\\text{{{re.sub(r'[{}]', '', name)}}}"


def _goes_on(match: re.Match[str]) -> str:
    block = match[3] or match[4]
    return f"{match[1]}.{match[2]}\\overline{{{block}}}"


def _system(match: re.Match[str]) -> str:
    """Returns a system of equations, one below the other, as a list; matrices and pieces of a function as they are."""
    rows = [row.strip(" ,.;\n").split("&") for row in re.split(r"\\\\(?:\[[^\]]*\])?", match["body"])]
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if not rows or not all(_STATES.search(row[0]) or _STATES.match(row[1].strip() if row[1:] else "") for row in rows):
        return match.group()
    return r" \text{ and } ".join(" ".join(row) for row in rows)


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
    if before := _PREAMBLE.match(text):
        text = ("\\text{" if before["text"] and not before["closed"] else "") + text[before.end() :]
    text = _VECTOR.sub(r"\\langle \1\\rangle", text) if text.startswith("<") else text
    text = _ONLY_REPEATING.sub(r"\1.\\overline{\2}", _GOES_ON.sub(_goes_on, text))
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", text).replace("+/-", r"\pm ")
    text = re.sub(r"\.{3,}", r"\\ldots ", text)
    text = re.sub(r"\\not\s*=", r"\\ne ", text)
    text = _OVER.sub(lambda m: f"\\frac{{{m[1] or m[3] or ''}}}{{{m[2] or m[4] or ''}}}", text)
    text = _GROUPED.sub(_ungroup, text)
    text = _LAYOUT.sub(" ", text).replace("\\{}", "")
    text = _SYSTEM.sub(_system, text) if r"\begin" in text else text
    text = re.sub(r"^(?:\\\\\s)+|(?:\s*\\\\)+\s*$", "", text)
    text = _REPEATING.sub(_repeating, _DEGREE.sub(r"^\\circ ", text))
    text = _TIMES_TEN.sub(r" \\cdot ", text)
    text = _COMMAND.sub(_renamed, text)
    text = _UPRIGHT.sub(_upright, text)
    text = _QUOTIENT_OF_UNITS.sub(r"\\text{\1/\2}", _FRACTION_OF_UNITS.sub(r"\\text{\1/\2}", text))
    text = _TEXT_OF_MATHS.sub(r" \1 ", text)
    text = _CODE.sub("^", text)
    text = re.sub(r"(?<![\\A-Za-z])sqrt\b", r"\\sqrt", text)
    text = re.sub(r"(?<![\\A-Za-z])cbrt\s*(?=[({])", r"\\sqrt[3]", text)
    return re.sub(r"\s+", " ", text).strip()


def _unwrap(text: str) -> str:
    """Drops what stands around an answer: dollars, display delimiters, Markdown's stars, a box, final punctuation."""
    for _ in range(8):
        before = text
        text = text.strip().strip("`").strip()
        if len(text) > 2 and (text[0], text[-1]) in (('"', '"'), ("'", "'"), ("\u201c", "\u201d")):
            text = text[1:-1].strip()
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
