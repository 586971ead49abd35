"""Home-made words that were retired for the field's do not come back: in names, docstrings, comments, messages, pages.

`LEFT` counts what is still there, and may only shrink: where there is more of a word than the table says, it came back;
where there is less, the table is to be lowered. `python -m tests.docs.test_words` writes the table as it should be.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

SOURCES = ("src/core", "src/lowtide", "examples")
MARKDOWN = [*PAGES, ROOT / "CHANGELOG.md"]
EAGER = ("src/core/eager/", "src/lowtide/_shim/eager/", "src/lowtide/eager_engine/")


@dataclass(frozen=True)
class Retired:
    """A word that is not used any more.

    Arguments:
        names: parts of identifiers, several joined by "_"; split at "_" and where camel case begins a word.
        use: what to write instead.
        text: a pattern of the retired sense in prose, where a space stands for any white space, in a comment too; empty
            for a word whose ordinary sense is too common to be told apart: it is looked for in identifiers only.
        allowed: a pattern of identifiers in which the word has its ordinary sense.
        under: folders in which the word is retired; everywhere if there are none.
    """

    names: tuple[str, ...]
    use: str
    text: str = ""
    allowed: str = ""
    under: tuple[str, ...] = ()


RETIRED = {
    "rerun": Retired(("rerun", "reruns", "reran"), "recompute, rematerialise", r"re-?(runs?|ran|running)"),
    "made again": Retired(
        ("made_again", "brought_back"),
        "recompute, rematerialise",
        r"(made|makes?|making) again|(brought|brings?|bringing) back|(runs?|ran) again",
    ),
    "move": Retired((), "offload, prefetch", r"(mov(e|es|ed|ing)|sen(d|ds|t|ding))( [\w`'-]+){0,4} to the host"),
    "home": Retired(
        ("home", "homes", "homeless", "visitor", "visitors"),
        "device-resident, host-resident; zone of persistent storages",
        r"homes?(?! folder| directory)|homeless|visitors?",
        allowed=r"HOME|(XDG|CUDA)_\w+",
    ),
    "way": Retired(("way", "ways"), "candidate, implementation", r"ways? (of|to) (bring|mak|run|comput)\w*"),
    "draft": Retired(("draft", "drafts"), "graph builder; offload candidate", r"drafts?"),
    "room": Retired(("room", "rooms", "roomier"), "free bytes, capacity, space", r"room(s|y|ier)?"),
    "stay": Retired(
        ("stay", "stays"),
        "lifetime, residency",
        r"(an?|each|every|one|its|whose|two|per) stays?",
        allowed=r"(\w+_)?stays_\w+",
    ),
    "moment": Retired(
        ("moment", "moments"),
        "cut point, instant",
        r"full(er|est)? moments?|moments? of (an?|the|its) (schedule|program|plan)",
    ),
    "tau": Retired(("tau", "taus"), "retention", r"taus?"),
    "wall": Retired(
        ("wall", "walls", "walled"),
        "hard budget, budget limit",
        r"walls?(?![\s-]?(clock|time)|\.md)",
        allowed=r"\w*wall_(s|clock|time)\w*",
    ),
    "ground": Retired(("ground", "grounds"), "constraints", r"grounds"),
    "bodies": Retired(("bodies",), "storages", r"bodies"),
    "beside": Retired(
        ("beside",), "concurrent; outside; next to", r"beside (the|its|an?) (plan|budget|arena|program|device)('s)?"
    ),
    "enclosure": Retired(("enclosure", "enclosures"), "budget scope", r"enclosures?"),
    "keeper": Retired(
        ("keeper", "performer"), "eviction manager, executor", r"(?<!book)(?<!book-)keepers?|performers?"
    ),
    "obstacle": Retired(("obstacle", "obstacles"), "live block", r"obstacles?"),
    "let go": Retired(
        ("let_go", "lets_go", "give_up", "given_up", "gives_up"),
        "free, release, drop",
        r"(lets?|letting)( \w+)? go|g(iv(es?|en|ing)|ave) up (an?|its|their|the) (values?|bytes?|storages?)",
    ),
    "departure": Retired(
        ("departure", "departures", "departed", "departs"),
        "misplaced allocation; divergence",
        r"(?<!\.)depart(s|ed|ing|ures?)?",
    ),
    "kinship": Retired(("kinship", "kin"), "recompute neighbourhood", r"kinship|kin"),
    "closure": Retired(("closure", "closures"), "replay record", r"closures?", under=EAGER),
    "cooling": Retired(
        ("cooling", "coolings"), "annealing run", r"(?<!geometric\s)coolings?(?! (schedule|rate|factor)|-)"
    ),
    "passage": Retired(("passage", "passages"), "backward lease", r"passages?"),
    "luggage": Retired(("luggage",), "host-saved tensors", r"luggage"),
    "detour": Retired(("detour", "detours"), "re-placement", r"detours?"),
    "liar": Retired(("liar", "liars"), "wrong schema", r"liars?"),
    "question": Retired(("question", "questions"), "cache key", r"questions?", under=("src/lowtide/plan_cache/",)),
    "knowledge": Retired(("knowledge",), "lookup"),
    "hunt": Retired(("hunt", "hunts", "hungrier"), "search", r"hunt(s|ed|ing)?"),
    "in force": Retired(("in_force",), "active", r"in force"),
}

# word: (in identifiers, in text); may only shrink
LEFT: dict[str, tuple[int, int]] = {
    "rerun": (2, 1),
    "made again": (0, 4),
    "move": (0, 2),
    "way": (1, 0),
    "stay": (10, 0),
    "tau": (71, 6),
    "wall": (0, 3),
    "bodies": (105, 1),
    "let go": (42, 2),
    "departure": (7, 2),
    "kinship": (2, 5),
    "closure": (111, 2),
    "passage": (0, 2),
    "in force": (9, 2),
}


@dataclass(frozen=True)
class Place:
    """A line of a file, with the identifier or the text that is there."""

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"


def _parts(name: str) -> str:
    """An identifier's words, in lower case and joined by "_"."""
    return re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3_\2\4", name).lower().strip("_")


def _names_of(node: ast.AST) -> Iterator[str]:
    """The identifiers that a node of Python's syntax writes itself."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
            yield from name.split(".")
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield name
        case ast.ImportFrom(module=str(module)):
            yield from module.split(".")
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names
        case ast.MatchClass(kwd_attrs=names):
            yield from names
        case _:
            return


@functools.cache
def _written() -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    """Every identifier of the sources, and every piece of text: strings, comments, Markdown."""
    names: list[Place] = []
    texts = [Place(page, 1, page.read_text(encoding="utf-8")) for page in MARKDOWN]
    for file in sorted(f for folder in SOURCES for f in (ROOT / folder).rglob("*")):
        if file.suffix in (".py", ".pyi"):
            _read_python(file, names, texts)
        elif file.suffix in (".cpp", ".hpp"):
            _read_cpp(file, names, texts)
    return tuple(names), tuple(texts)


def _read_python(file: Path, names: list[Place], texts: list[Place]) -> None:
    source = file.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        line = getattr(node, "lineno", 1)
        names += [Place(file, line, _parts(name)) for name in _names_of(node) if name]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(Place(file, line, node.value))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            texts.append(Place(file, token.start[0], token.string))


def _read_cpp(file: Path, names: list[Place], texts: list[Place]) -> None:
    source = file.read_text(encoding="utf-8")
    code = list(source)
    for found in re.finditer(r'(?:[ \t]*//[^\n]*\n?)+|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', source, re.DOTALL):
        line = source.count("\n", 0, found.start()) + 1
        if not source[: found.start()].rpartition("\n")[2].lstrip().startswith("#include"):
            texts.append(Place(file, line, found.group()))
        code[found.start() : found.end()] = [c if c == "\n" else " " for c in found.group()]
    for number, written in enumerate("".join(code).split("\n"), start=1):
        if not written.startswith("#include"):
            names += [Place(file, number, _parts(name)) for name in re.findall(r"[A-Za-z_]\w*", written)]


def _is_under(place: Place, retired: Retired) -> bool:
    path = str(place.file.relative_to(ROOT))
    return not retired.under or path.startswith(retired.under)


def _found(retired: Retired) -> tuple[list[Place], list[Place]]:
    """The places at which a word is still written: in identifiers, and in text."""
    names, texts = _written()
    part = re.compile(rf"(?:^|_)(?:{'|'.join(retired.names) or '(?!)'})(?:$|_)")
    ordinary = re.compile(retired.allowed.lower() or "(?!)")
    text = retired.text.replace(" ", r"[\s#/*]+") or "(?!)"
    prose = re.compile(rf"\b(?:{text})\b", re.IGNORECASE)
    in_names = [p for p in names if part.search(p.text) and not ordinary.fullmatch(p.text) and _is_under(p, retired)]
    in_text = [
        Place(p.file, p.line + p.text.count("\n", 0, hit.start()), hit.group())
        for p in texts
        if _is_under(p, retired)
        for hit in prose.finditer(p.text)
    ]
    return in_names, in_text


@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_does_not_come_back(word: str) -> None:
    retired = RETIRED[word]
    found = dict(zip(("identifiers", "text"), _found(retired), strict=True))
    for (where, places), most in zip(found.items(), LEFT.get(word, (0, 0)), strict=True):
        assert len(places) <= most, f"in {where}, write {retired.use}: " + ", ".join(
            f"{place} {place.text!r}" for place in places
        )
        assert len(places) == most, f"{word!r} is left {len(places)} times in {where}: lower LEFT, which says {most}"


def test_every_count_is_of_a_retired_word() -> None:
    assert LEFT.keys() <= RETIRED.keys()


@pytest.mark.parametrize(
    ("name", "parts"),
    [("max_room_B", "max_room_b"), ("makeRoom", "make_room"), ("HTMLPage", "html_page"), ("_Bodies", "bodies")],
)
def test_identifiers_are_split_into_words(name: str, parts: str) -> None:
    assert _parts(name) == parts


def test_files_and_pages_were_read() -> None:
    names, texts = _written()
    assert {p.file.suffix for p in names} == {".py", ".pyi", ".cpp", ".hpp"}
    assert {p.file.suffix for p in texts} == {".py", ".pyi", ".cpp", ".hpp", ".md"}


if __name__ == "__main__":
    counts = {word: tuple(map(len, _found(retired))) for word, retired in RETIRED.items()}
    rows = "".join(f'    "{word}": {count},\n' for word, count in counts.items() if any(count))
    sys.stdout.write(f"LEFT: dict[str, tuple[int, int]] = {{\n{rows}}}\n")
