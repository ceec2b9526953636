"""The production's rules, each taken away in this process: some schedule must then break a promise."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any, NamedTuple
from unittest import mock

from model.families import families
from outbound_transfer.airflow_compat.task_try import TaskTry
from outbound_transfer.client import Client
from outbound_transfer.delivery import decision, delivery, draft, keys, row, sending
from outbound_transfer.files import uploads


class Mutant(NamedTuple):
    name: str
    patch: AbstractContextManager[Any]


def of_the_table() -> Iterator[Mutant]:
    """Each rule of the table removed, and each with one condition less."""
    for at, rule in enumerate(decision.RULES):
        others = decision.RULES[:at], decision.RULES[at + 1 :]
        words = f"rule {at + 1} ({rule.then.name})"
        yield Mutant(f"{words} removed", _table((*others[0], *others[1])))
        for name in rule.when:
            when = {other: values for other, values in rule.when.items() if other != name}
            yield Mutant(f"{words} without {name}", _table((*others[0], rule._replace(when=when), *others[1])))


def _table(rules: Any) -> AbstractContextManager[Any]:
    return mock.patch.object(decision, "RULES", rules)


def of_the_code() -> Iterator[Mutant]:
    """Each named rule of the row, the draft, the send and the keys changed, by its text."""
    for name, owner, function, old, new in CHANGES:
        original = getattr(owner, function)
        source = textwrap.dedent(inspect.getsource(original))
        assert source.count(old) == 1, f"{name}: {old!r} is in {function} {source.count(old)} times"
        values: dict[str, Any] = {}
        code = compile(source.replace(old, new), name, "exec", __future__.annotations.compiler_flag)
        exec(code, {"staticmethod": lambda function: function}, values)
        # The code, as other modules have imported the function.
        yield Mutant(name, _with_code(original, values[function].__code__))


@contextmanager
def _with_code(function: Any, code: Any) -> Iterator[None]:
    before, function.__code__ = function.__code__, code
    try:
        yield
    finally:
        function.__code__ = before


CHANGES: tuple[tuple[str, Any, str, str, str], ...] = (
    ("row: the claim is not compared", row.Row, "check_own", "memory.claim != self._claim", "False"),
    (
        "row: the version is not compared",
        row.Row,
        "put",
        "self.rows.put(key or self.key, version,",
        "self.rows.put(key or self.key, self.rows.read(key or self.key)[0],",
    ),
    (
        "row: an older attempt may claim",
        TaskTry,
        "check_newest",
        "run_started_at == self.run_started_at and",
        "False and",
    ),
    ("row: one of a run before may claim", TaskTry, "check_newest", "run_started_at > self.run_started_at", "False"),
    (
        "row: a run that is made again continues",
        row.Row,
        "claim",
        "if is_own and self._is_of_deleted_run(memory, by):",
        "if False:",
    ),
    ("row: a run that was cleared begins anew", row.Row, "_is_of_deleted_run", "by.is_fresh and", ""),
    ("row: a run that is made again under a key begins anew", row.Row, "claim", "if is_own and", "if"),
    (
        "row: a run that is made again leaves nothing behind",
        row.Row,
        "claim",
        "self.put(0, memory, key=hash_of(self.key, memory.tries[name][0]))",
        "pass",
    ),
    (
        "row: a new draft forgets who has filled the old one",
        row.Memory,
        "emptied",
        "for who, entry in self.entries.items() if who",
        "for who, entry in ()",
    ),
    (
        "row: the files of an open entry count",
        row.Memory,
        "files",
        "any(entry.is_open for entry in self.entries.values())",
        "False",
    ),
    (
        "row: a twin has the same people alone",
        row.Memory,
        "twin",
        "for name, held in self.held.items()",
        "for name, held in ()",
    ),
    ("row: another draft is as good", row, "require_draft", "memory.transfer_id != transfer_id or", ""),
    ("row: any phase is as good", row, "require_draft", "or memory.phase not in phases", ""),
    (
        "delivery: an incomplete transfer is returned",
        delivery.Delivery,
        "_check_returned",
        "if not memory.entries or memory.files() is None:",
        "if False:",
    ),
    (
        "delivery: files are not compared after a clear",
        delivery.Delivery,
        "_check_returned",
        "memory.asked != self.attempt.asked",
        "False",
    ),
    (
        "delivery: 404 is gone, whatever the key",
        delivery.Delivery,
        "_look",
        'has_same_key = matches(memory.key_check, "key", settings.transfer_api_key)',
        "has_same_key = True",
    ),
    (
        "delivery: the account is not compared",
        delivery.Delivery,
        "_look",
        "memory.account != settings.account",
        "False",
    ),
    ("delivery: an id alone proves a transfer", delivery.Delivery, "_look", "or not is_of(memory, transfer)", ""),
    (
        "delivery: that it was sent is not stored",
        delivery.Delivery,
        "_look",
        "memory.phase is not Phase.SENDING",
        "False",
    ),
    ("delivery: the draft is not stored", delivery.Delivery, "_create", "transfer_id=transfer.id", 'transfer_id=""'),
    ("draft: one may fill while a send is under way", draft.Filling, "_open", "memory.phase is Phase.SENDING", "False"),
    ("draft: the entry is opened late", draft.Filling, "_open", "claim=self._claim, is_open=True", "claim=self._claim"),
    ("draft: two attempts share a claim", draft.Filling, "_open", "before.claim + 1", "before.claim or 1"),
    (
        "draft: a doubtful name may be given up",
        draft.Filling,
        "fill",
        "(each := before[name]) is None or each.is_doubtful",
        "False and (each := before[name])",
    ),
    (
        "draft: a begun name may be given up",
        draft.Filling,
        "fill",
        "(each := before[name]) is None or each.is_doubtful",
        "(each := before[name]) is not None and each.is_doubtful",
    ),
    (
        "draft: names are not stored before they are uploaded",
        draft.Filling,
        "fill",
        "self._save(check_names=True)",
        "pass",
    ),
    (
        "draft: a changed source is kept",
        draft,
        "_is_same",
        "(before.size, before.fingerprint) == (source.size, shorten(source))",
        "True",
    ),
    ("draft: a file is kept by its name", draft, "_is_same", "held[source.name].id != before.id", "False"),
    ("draft: two tasks may attach one name", draft.Filling, "_save", "if check_names and", "if False and"),
    (
        "draft: the entry's claim is not compared",
        draft.Filling,
        "_require_own",
        "_entry(memory, self._who).claim != self._claim",
        "False",
    ),
    (
        "draft: the draft is not compared",
        draft.Filling,
        "_require_own",
        "require_draft(memory, self._id, self._phase)",
        "pass",
    ),
    (
        "draft: an open entry of a sent draft is complete",
        draft.Filling,
        "_compare_sent",
        "if self._was_open:",
        "if False:",
    ),
    ("draft: a send in doubt is a sent draft", draft.Filling, "_compare_sent", "if transfer.is_draft:", "if False:"),
    (
        "draft: sent files are not compared",
        draft.Filling,
        "_compare_sent",
        "if differences := describe_differences(held, sources):",
        "if False:",
    ),
    ("draft: files that are not wanted stay", draft.Filling, "fill", "for name in sorted(leaving):", "for name in ():"),
    ("uploads: a 200 proves an upload", Client, "attach_file", "response.status == 201", "True"),
    (
        "uploads: a doubtful 200 proves it where others may arrive",
        uploads,
        "_upload",
        "and is_same and not taken",
        "and is_same",
    ),
    ("uploads: a doubt is forgotten", uploads, "_upload", "attached.is_doubtful or others_may_arrive", "False"),
    ("uploads: a source that changes is not noticed", uploads, "_check_source", "source.check_unchanged()", "pass"),
    (
        "sending: after a doubt, others may fill again",
        sending.Sending,
        "_send_once",
        "self._is_in_doubt |= error.in_doubt",
        "pass",
    ),
    (
        "sending: an earlier attempt's doubt is forgotten",
        sending.Sending,
        "__init__",
        "self._is_in_doubt = row.memory.phase is Phase.SENDING",
        "self._is_in_doubt = False",
    ),
    ("sending: the claim is not compared", sending.Sending, "_begin", "self._row.check_own(memory)", "pass"),
    (
        "sending: the draft is not compared",
        sending.Sending,
        "_begin",
        "require_draft(memory, transfer_id, Phase.HANDED_ON, Phase.SENDING)",
        "pass",
    ),
    ("sending: the draft is read once", sending.Sending, "_begin", "self._draft = None", "pass"),
    (
        "sending: the version is not compared",
        sending.Sending,
        "_begin",
        "if self._row.put(version, replace(memory, phase=Phase.SENDING)):\n            self._draft",
        "if self._row.save(phase=Phase.SENDING):\n            self._draft",
    ),
    (
        "sending: it is not stored that a send begins",
        sending.Sending,
        "_begin",
        "if self._row.put(version, replace(memory, phase=Phase.SENDING)):\n            self._draft",
        "if True:\n            self._draft",
    ),
    ("sending: what is gone may be sent", sending.Sending, "_begin", "if not transfer.is_draft:", "if False:"),
    (
        "sending: an open entry is no reason to wait",
        sending.Sending,
        "_without_skipped",
        "waiting = {who: entry for who, entry in memory.entries.items() if entry.is_open}",
        "return replace(memory, entries={who: each for who, each in memory.entries.items() if not each.is_open})",
    ),
    (
        "sending: a skipped task is left out with its files",
        sending.Sending,
        "_without_skipped",
        "and not entry.files",
        "",
    ),
    ("sending: a skipped task is waited for", sending.Sending, "_without_skipped", "state in LEFT_OUT", "False"),
    ("sending: the files are not compared", sending.Sending, "_require_meant", "held != meant", "False"),
    (
        "sending: twins are not looked for",
        sending.Sending,
        "_require_no_twin",
        "if twin := self._row.find_twin(self._attempt.run_of_twins):",
        'if twin := "":',
    ),
    ("sending: what is gone was discarded", sending, "discard", "memory.phase is Phase.SENDING", "False"),
    (
        "sending: the removal is not stored first",
        sending,
        "delete_draft",
        "row.save(phase=Phase.DISCARDING).transfer_id",
        "row.memory.transfer_id",
    ),
    ("sending: 409 proves a removal", sending, "delete_draft", "outcome is Discarded.SENT", "False"),
    ("keys: an owner at work is overtaken", keys, "_require_free", "attempt.is_at_work(memory.owner)", "False"),
    (
        "keys: what the task has begun before is left",
        keys,
        "begin_delivery",
        "_settle(client, rows, attempt, own, **options)",
        "pass",
    ),
    ("keys: the new key is not stored", keys, "begin_delivery", 'own.save(key=keyed.key if keyed else "")', "pass"),
    ("keys: any task's row is its own", keys, "_require_own", "memory.asked[0] != attempt.name", "False"),
    ("keys: another owner goes on with it", keys, "_require_own", "attempt.is_at_work(memory.owner)", "False"),
)


def find(mutant: Mutant, samples: tuple[int, ...] = (61, 13), only: str = "") -> str:
    """Return the first schedule that breaks a promise with a mutant; "" if it survives.

    :param samples: of the schedules, every so many are run, in turn. :param only: the families whose name begins so.
    """
    with mutant.patch:
        for every in samples:
            for name, make in families().items():
                try:
                    for label, run in islice(make() if name.startswith(only) else (), 0, None, every):
                        if violations := run().violations:
                            return f"{name} {label}: {violations[0]:.120}"
                except Exception as error:
                    return f"{name}: {type(error).__name__} {error}"[:160]
    return ""


def mutants() -> Iterator[Mutant]:
    yield from of_the_table()
    yield from of_the_code()


#: Rules that no schedule needs, with what they are for.
SURVIVORS: dict[str, str] = {}
