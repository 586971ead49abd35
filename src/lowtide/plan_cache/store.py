"""Plans on disk: one file per plan, found by what was asked, bounded in bytes.

A file's name starts with the structure of the program, so that plans for other shapes of one program stand together;
its first line says for people and for eviction what the plan is for. A plan that cannot be used is sought anew.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from lowtide.errors import BudgetError, PlanError, PlanFileError
from lowtide.ir.check_claims import check_claims
from lowtide.ir.file_store import Entry, FileStore, cache_folder
from lowtide.ir.plan import PlanRecord
from lowtide.ir.text import dumps, loads
from lowtide.units import parse_budget

_DEFAULT_B = 2**30


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a cached plan's file.

    Arguments:
        key: under which the plan is kept.
        structure: of its program (`lowtide.ir.likeness.structure`).
        size_B: bytes of the program's values together, which orders its shapes.
        name: of the program, for people; may be empty.
        shapes: of the inputs, for people.
        budget_B: what the budget came to.
        environment: where it was measured; plans are neighbours only within one.
        lowtide: version that wrote it.
    """

    key: str
    structure: str
    size_B: int
    name: str
    shapes: str
    budget_B: int
    environment: str
    lowtide: str


def default_limit_B() -> int:
    """Bytes that the plans may take: `$LOWTIDE_PLAN_CACHE` ("512MiB"; "0" keeps none), else 1 GiB.

    Raises:
        BudgetError: if the variable cannot be read.
    """
    text = os.environ.get("LOWTIDE_PLAN_CACHE", "").strip()
    if not text:
        return _DEFAULT_B
    if text == "0":
        return 0
    try:
        size_B = parse_budget(text).size_B
    except BudgetError as error:
        raise BudgetError(f"LOWTIDE_PLAN_CACHE: {error}") from error
    if size_B is None:
        raise BudgetError(
            f'LOWTIDE_PLAN_CACHE={text!r} is a share of nothing: write bytes, "512MiB", or 0 for no plans'
        )
    return size_B


class PlanCache:
    """Plans by key.

    Arguments:
        folder: made when first written to; that of the user's cache when None.
        limit_B: the least recently used plans go when all together take more; 0 keeps and finds none;
            `default_limit_B()` when None.

    Raises:
        BudgetError: if `$LOWTIDE_PLAN_CACHE` cannot be read.
    """

    def __init__(self, folder: Path | None = None, *, limit_B: int | None = None) -> None:
        self.limit_B = default_limit_B() if limit_B is None else limit_B
        self.store = FileStore(folder or cache_folder("plans"), ".plan", "plans", Header, limit_B=self.limit_B)

    def get(self, structure: str, key: str) -> PlanRecord | None:
        """The plan under a key, and a note that it was used; None if there is none that can be read."""
        name = f"{structure}-{key}"
        found = self.store.read(name) if self.limit_B else None
        if found is None:
            return None
        header, content = found
        try:
            if (header.structure, header.key) != (structure, key):
                raise PlanFileError("its key is another than its name says")
            record = loads(content, PlanRecord, f"{name}.plan")
            check_claims(record)
        except PlanError as error:
            self.store.remove(name, str(error))
            return None
        return record

    def put(self, header: Header, record: PlanRecord) -> None:
        """Keeps a plan, and lets the least recently used go where all together take too much."""
        if not self.limit_B:
            return
        try:
            content = dumps(record).encode()
        except PlanFileError as error:  # a planner's statistics without a text form
            self.store.complain("written to", error)
            return
        self.store.write(f"{header.structure}-{header.key}", header, content)

    def discard(self, structure: str, key: str, reason: str) -> None:
        """Removes a plan that cannot be used; another will be sought."""
        self.store.remove(f"{structure}-{key}", reason)

    def shapes_of(self, structure: str) -> list[Entry[Header]]:
        """The plans there are for other shapes of one program."""
        return self.store.entries(f"{structure}-") if self.limit_B else []
