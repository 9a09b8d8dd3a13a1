"""Verdicts on a page: a card per claim, and how many there are of each."""

from collections.abc import Sequence
from typing import Any

from toolkit.report.markup import Html, tag

__all__ = ["card", "tally"]

_SIGNS = {
    "supported": "\u2713",
    "refuted": "\u2717",
    "inconclusive": "~",
    "not tested": "\u2013",
}


def card(claim: dict[str, Any]) -> Html:
    """A claim with its verdict, evidence, source and budget."""
    verdict = claim["verdict"]
    lines = claim["sentence"].removeprefix("not tested: ").split("; ")
    budget = claim["evidence"].get("budget", {}).get("equal")
    origin = " \u00b7 ".join(
        filter(None, [claim["source"], f"equal {budget}" if budget else None, claim["name"]])
    )
    return tag(
        "article",
        _pill(verdict, verdict),
        tag("h3", claim["text"] or claim["name"]),
        tag("ul", *(tag("li", _typeset(line)) for line in lines)),
        tag("p", origin, class_="from"),
        class_=f"card {verdict.replace(' ', '-')}",
    )


def _typeset(text: str) -> str:
    """Real minus signs, and no line break within ``95 %`` and ``n = 5``."""
    for plain, proper in ((" -", " \u2212"), ("95 %", "95\u00a0%"), ("n = ", "n\u00a0=\u00a0")):
        text = text.replace(plain, proper)
    return text


def tally(claims: Sequence[dict[str, Any]]) -> Html | None:
    """How many claims have which verdict."""
    counts = {word: sum(claim["verdict"] == word for claim in claims) for word in _SIGNS}
    pills = [_pill(word, f"{count} {word}") for word, count in counts.items() if count]
    return tag("p", *pills, class_="tally") if pills else None


def _pill(verdict: str, text: str) -> Html:
    kind = f"verdict {verdict.replace(' ', '-')}"
    return tag("span", f"{_SIGNS[verdict]} {text}", class_=kind)
