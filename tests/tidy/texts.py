"""Rules on words: what must not stand in any file of the repository, and docstrings that say too little."""

from __future__ import annotations

import ast
import re

from tests.tidy.sources import Source

# Written so that this file does not break its own rule.
_HOSTS = (r"pypi[.]org", r"files[.]pythonhosted[.]org", r"repo\d?[.]maven[.]\w+", r"(?:repo|conda)[.]anaconda[.]\w+")
_BANNED = {
    rf"\b(?:{'|'.join(_HOSTS)})\b": "a registry's host: which one to use is the user's setting",
    r"(?<![\w.~$}/-])/(?:root|work|Users|home/\w+)/": "a path of one machine",
    r"\b(?:TOD[O]|FIXM[E]|XX[X])\b": "an unfinished thought: finish it, or open an issue",
    r"(?<!/)\bstelae\[[a-z]": "an install line that finds no release: see `how_to_install`",
    r"^(?:<{7} |>{7} |={7}$)": "a merge conflict",
}
_RIDDLE = re.compile(r'^ *"""[A-Za-z]+( [a-z]+){0,2}\."""$')
_BEGINNINGS = (
    r"While|Until|For|From|On|With|By|Of|As|In|How many (?:are|were)|The same (?:as|of|for|in|without)|There (?:is|may)"
)
_HALF_SAID = re.compile(rf"(?:{_BEGINNINGS})\b[^`:]*\.")
_HALF_SAID_WORDS_MAX = 8


def riddles(source: Source) -> list[str]:
    """A docstring of one to three words says nothing to a reader in a hurry; nor does a short one of a function that
    begins in the middle: "While nobody waits for it.\""""
    found = [(number, line.strip()) for number, line in enumerate(source.text.splitlines(), 1) if _RIDDLE.match(line)]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node) or ""
            if len(said.split()) <= _HALF_SAID_WORDS_MAX and _HALF_SAID.fullmatch(said):
                found.append((node.lineno, said))
    return [f"{source.path}:{number}: {said}: say what is true and for whom, or leave it out" for number, said in found]


def banned_words(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number}: {found[0].strip()!r} is {reason}"
        for pattern, reason in _BANNED.items()
        for number, line in enumerate(text.splitlines(), 1)
        for found in [re.search(pattern, line)]
        if found
    ]
