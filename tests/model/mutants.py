"""The production's rules, each taken away in this process: some schedule must then break a promise."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from model.families import families, sample
from outbound_transfer.client import client
from outbound_transfer.delivery import approve, attempt, decision, delivery, draft, row, sent
from outbound_transfer.files import attached


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
    """The row, the draft, the uploads, the send and the keys, each with a line changed where it occurs last."""
    lines = CHANGES.strip().splitlines()
    for rule, change in zip(lines[::2], lines[1::2], strict=True):
        path, words = rule.split(": ")
        old, new = (part.strip() for part in change.split(" ->"))
        name, function = f"{path.partition('.')[0]}: {words}", attrgetter(path)(MODULES)
        before, found, after = textwrap.dedent(inspect.getsource(function)).rpartition(old)
        assert found, f"{name}: {old!r} is not in {path}"
        values: dict[str, Any] = dict.fromkeys(("staticmethod", "property"), lambda function: function)
        exec(compile(before + new + after, name, "exec", __future__.annotations.compiler_flag), values)
        # The code, as other modules have imported the function.
        yield Mutant(name, _with_code(function, values[function.__name__].__code__))


@contextmanager
def _with_code(function: Any, code: Any) -> Iterator[None]:
    before, function.__code__ = function.__code__, code
    try:
        yield
    finally:
        function.__code__ = before


MODULES = SimpleNamespace(
    approve=approve,
    attempt=attempt,
    client=client,
    delivery=delivery,
    draft=draft,
    row=row,
    sent=sent,
    attached=attached,
)

#: A function and what is taken away from it, and below that, the text and what it becomes.
CHANGES = r"""
row.Row.check_own: the claim is not compared
    memory.claim != self.claim_number -> False
row.Row.put: the version is not compared
    self.rows.put(self.key, version, -> self.rows.put(self.key, type("", (int,), {"__ne__": lambda *_: False})(version),
attempt.TaskTry.check_newest: an older attempt may claim
    (run_started_at, try_number) > (self.run_started_at, self.try_number): -> run_started_at > self.run_started_at:
attempt.TaskTry.check_newest: one of a run before may claim
    (run_started_at, try_number) > ( -> run_started_at == self.run_started_at and (run_started_at, try_number) > (
row.Row.claim: a run that is made again continues
    return memory if is_own and -> return None if is_own and
row.Row.claim: a run that was cleared begins anew
    is_fresh and ->
row.Row.claim: a run that is made again under a key begins anew
    if is_own and -> if
row.Row.claim: a run that is made again leaves nothing behind
    self.change(claimed, of_deleted_run) -> self.change(claimed)
row.Memory.emptied: a new draft forgets who has filled the old one
    for who, entry in self.entries.items() if who -> for who, entry in ()
row.Memory.files: the files of an open entry count
    any(entry.is_open for entry in self.entries.values()) -> False
row.Memory.twin: a twin has the same people alone
    for name, held in self.held.items() -> for name, held in ()
row.require_draft: another draft is as good
    memory.transfer_id != transfer_id or ->
row.require_draft: any phase is as good
    or memory.phase not in phases ->
sent.check_sent: what a person has sent too early is returned
    changed_files(memory, memory.entries.values(), None) -> pass
client._require_deleted: any response proves a removal
    response.status != 204 -> False
sent.changed_files: an incomplete transfer is returned
    if not entries or any(entry.is_open for entry in entries): -> if False:
delivery.Delivery._check_returned: files are not compared after a clear
    None if is_retry else order.find_sources -> None
delivery.Delivery._check_returned: a clear of a running task is a retry
    (memory.asked, memory.clear_number) == (by.asked, by.clear_number) -> memory.asked == by.asked
delivery.Delivery.look: 404 is gone, whatever the key
    if is_own_key -> if True
delivery.Delivery.look: the account is not compared
    memory.account != settings.account -> False
delivery.Delivery.look: an id alone proves a transfer
    or not is_of(memory, transfer) ->
delivery.Delivery.look: that it was sent is not stored
    memory.phase is not Phase.SENDING -> False
delivery.Delivery.look_here: what another key does not show is gone
    is Seen.ELSEWHERE -> is None
delivery.Delivery._create: the draft is not stored
    transfer_id=transfer.id -> transfer_id=""
delivery.Delivery._delete: the removal is not stored first
    self.row.save(phase=Phase.DISCARDING).transfer_id -> self.memory.transfer_id
delivery.Delivery._delete: 409 proves a removal
    self.row.save(phase=Phase.SENDING) -> self.row.save(Memory.emptied)
draft.Filling._open: one may fill while a send is under way
    memory.phase is Phase.SENDING -> False
draft.Filling._open: the entry is opened late
    claim=self._claim, is_open=True -> claim=self._claim
draft.Filling._open: two attempts share a claim
    self._claim = self._entry.claim + 1 -> self._claim = 1
draft.Filling._refuse_foreign: a doubtful name may be given up
    file is None or file.is_doubtful -> file is None
draft.Filling._refuse_foreign: a begun name may be given up
    file is None or file.is_doubtful -> file is not None and file.is_doubtful
draft.Filling.fill: names are not stored before they are uploaded
    self.files = begun | keeps | removed -> self.files = keeps | removed
draft.Filling._is_held: a changed source is kept
    (before.size, before.fingerprint) == (source.size, shorten(source)) -> True
draft.Filling._is_held: a file is kept by its name
    or now.id != before.id ->
draft.Filling._save: two tasks may attach one name
    if both := sorted(others & files.keys()): -> if both := []:
draft.Filling._require_own: the entry's claim is not compared
    self._who and memory.entries -> False and memory.entries
draft.Filling._require_own: the draft is not compared
    require_draft(memory, self._id, *self._phases) -> pass
draft.Filling.attach: a send in doubt is a sent draft
    if not transfer.is_draft: -> if is_sending or not transfer.is_draft:
draft.Filling._compare_sent: sent files are not compared
    find): -> find) and False:
draft.Filling.fill: files that are not wanted stay
    self._client.remove_file(self._id, file.id, self._check_own) -> pass
client.Client.attach_file: a 200 proves an upload
    response.status == 201 -> True
attached.Uploads._upload: a doubtful 200 proves it where others may arrive
    and not taken) -> )
attached.Uploads._upload: a doubt is forgotten
    is_doubtful = is_doubtful or others_may_arrive -> is_doubtful = False
attached.Uploads._check_source: a source that changes is not noticed
    source.check_unchanged() -> pass
draft.Sending._send_once: after a doubt, others may fill again
    self._is_in_doubt |= in_doubt -> pass
draft.Sending.__init__: an earlier attempt's doubt is forgotten
    self._is_in_doubt = delivery.memory.phase is Phase.SENDING -> self._is_in_doubt = False
draft.Sending._begin: the claim is not compared
    self._row.check_own(memory) -> pass
draft.Sending._begin: another draft is sent
    require_draft(memory, self._id, Phase.HANDED_ON, Phase.SENDING) -> pass
draft.Sending._send_once: the draft is read once
    self._draft = None -> pass
draft.Sending._begin: the version is not compared
    self._row.put(version, replace(memory, phase=Phase.SENDING)) -> self._row.save(phase=Phase.SENDING)
draft.Sending._begin: it is not stored that a send begins
    self._row.put(version, replace(memory, phase=Phase.SENDING)) -> True
draft.Sending._begin: what is gone may be sent
    if not transfer.is_draft: -> if False:
draft.without_skipped: a skipped task is left out with its files
    and not entry.files ->
draft.without_skipped: what a task has attached is sent, though it is skipped this time
    (entry.is_open or attempt.by.clear_number) -> entry.is_open
draft.without_skipped: a skipped task is waited for
    if state in LEFT_OUT and not entry.files: -> if False:
draft.require_attached: the files are not compared
    held != meant -> False
row.Row.require_no_twin: twins are not looked for
    if twin := self.rows.find_twin([self.key, *self.memory.siblings], self.memory.twin(), started): -> if twin := "":
delivery._claim: an owner at work is overtaken
    attempt.is_at_work(memory.owner, has_handed_on=handed_on) -> False
row.Memory.emptied: a new draft needs no approval
    self.approval and Approval() -> None
row.Memory.is_approved.fget: any approval will do
    and self.approval.shown == self.shown()) -> )
approve.ask: that somebody is asked is not stored
    else replace(memory, approval=Approval(asked)) -> else memory
approve.answer: the choice is not compared with the files
    option not in (options := options_of(memory)) -> not (options := (f"Approve{option[7:]}", ""))
delivery.begin_delivery: what the task has begun before is left
    _settle(client, Row(rows, before) if before else own, attempt) -> pass
delivery.begin_delivery: the new key is not stored
    own.save(key=key) -> pass
delivery._settle: any task's row is its own
    attempt.name not in (memory.owner, memory.asked[0]) -> False
"""


def find(mutant: Mutant, samples: tuple[int, ...] = (15, 250), only: str = "") -> str:
    """Return the first schedule that breaks a promise with a mutant; "" if it survives.

    :param samples: how many schedules of each family are run, in turn. :param only: the families whose name begins so.
    """
    with mutant.patch:
        for count in samples:
            for name, make in families().items():
                try:
                    for label, run in sample(make, count) if name.startswith(only) else ():
                        if violations := run().violations:
                            return f"{name} {label}: {violations[0]:.120}"
                except Exception as error:
                    return f"{name}: {type(error).__name__} {error}"[:160]
    return ""


def mutants() -> Iterator[Mutant]:
    yield from of_the_table()
    yield from of_the_code()


#: Rules that no schedule needs, with what they are for.
SURVIVORS: dict[str, str] = {
    "rule 8 (RESUME) without seen": "once a draft is gone, the send refuses the empty row; saves a try",
    "draft: what is gone may be sent": "the service answers 409, and send_once reads the same; saves a call",
    "draft: another draft is sent": "the row of another draft does not show this transfer; it says why",
    "draft: files that are not wanted stay": "the send refuses a draft with other files; saves a clear",
}
