"""Check the subject of a commit: `area: verb …`, at most 72 characters, without a full stop."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

MAX_LENGTH: Final = 72

#: Endings of words that are no imperative: "fixed", "fixes" and "fixing" say a state.
_NOT_IMPERATIVE: Final = re.compile(r"\w+(ed|[^s]s|ing)")

#: Imperatives that have such an ending.
_IMPERATIVE: Final = {"bring", "embed", "exceed", "feed", "need", "process", "seed", "speed", "address"}


def faults_of(subject: str) -> Iterator[str]:
    """Yield what is wrong with a subject."""
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return
    if len(subject) > MAX_LENGTH:
        yield f"it has {len(subject)} characters, at most {MAX_LENGTH} are allowed"
    if subject.endswith("."):
        yield "it ends with a full stop"
    area, colon, change = subject.partition(": ")
    if not colon or not re.fullmatch(r"[\w/.-]+(, [\w/.-]+)*", area):
        yield "it does not begin with an area, as in `store: insert pages as JSON`"
    elif (verb := change.split(" ")[0].lower()) not in _IMPERATIVE and _NOT_IMPERATIVE.fullmatch(verb):
        yield f"'{verb}' is not an imperative"


if __name__ == "__main__":
    (subject, *_) = Path(sys.argv[1]).read_text().splitlines() or [""]
    faults = [*faults_of(subject)]
    print(*(f"The commit's subject: {fault}" for fault in faults), sep="\n")
    sys.exit(bool(faults))
