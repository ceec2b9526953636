"""The arguments that say which files to attach: checked, hidden and found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from outbound_transfer.airflow_compat.rendering import is_unmapped
from outbound_transfer.client.content_disposition import check_name
from outbound_transfer.client.errors import InvalidDelivery, NothingMatches
from outbound_transfer.files.content import wrap_contents
from outbound_transfer.operators.arguments import Check, require_choice, to_repeatable, to_whole_number, without_none
from outbound_transfer.wording import format_bytes, pluralize

if TYPE_CHECKING:
    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.client.models import File
    from outbound_transfer.files.content import Spool
    from outbound_transfer.files.find import ParsedSpec
    from outbound_transfer.files.sources import Source

    #: Finds the files; takes a list for the errors of those that are gone if they are compared with what was sent.
    FindSources: TypeAlias = Callable[..., Sequence[Source]]


#: Arguments that say which files to deliver.
FILES_FIELDS: Final = ("files", "archive", "checksums", "on_empty", "max_parallel_uploads")

#: Why a task is skipped.
NOTHING_MATCHES: Final = "No pattern in files matches a file"


def _check_some_file(files: Any) -> None:
    if not files:
        from outbound_transfer.files.find import NO_FILES

        raise InvalidDelivery(NO_FILES)


def _check_files(files: Any) -> None:
    listed = files if isinstance(files, list | tuple) else [files]
    if given := [each for each in listed if isinstance(each, Mapping)]:
        from outbound_transfer.files.find import parse_files

        parse_files(given)


def _check_checksums(name: Any) -> None:
    if name:
        check_name(name)


def _check_archive(archive: Any) -> None:
    if archive:
        from outbound_transfer.files.archive import check_archive_name

        check_archive_name(archive)


#: Of files that may be left out: something else is delivered, too.
MORE_FILES_CHECKS: Final = (
    Check(("files",), _check_files),
    Check(("archive",), _check_archive),
    Check(("checksums",), _check_checksums),
    Check(("max_parallel_uploads",), lambda number: to_whole_number("max_parallel_uploads", number)),
)

FILES_CHECKS: Final = (
    Check(("files",), _check_some_file),
    Check(("on_empty",), lambda choice: require_choice("on_empty", choice, ("fail", "skip"))),
    *MORE_FILES_CHECKS,
)


def describe_files(files: Sequence[Source] | Sequence[File]) -> str:
    """Return for example ``2 files (1.5 MB)``."""
    return f"{pluralize(len(files), 'file')} ({format_bytes(sum(file.size for file in files))})"


def given_files(task: Any, files: Any) -> Any:
    """Return files as a task keeps them: for each try, and without the contents of a Dag file in sight."""
    # Airflow knows by its identity what another task has returned.
    return files if is_unmapped(task) else wrap_contents(to_repeatable(files), rendered=False)


def prepare_files(task: Any) -> None:
    """Prepare the arguments to be rendered: text that is no template is content, also of a mapped task."""
    task.files = wrap_contents(task.files, rendered=False)


def hide_files(task: Any, given: Mapping[str, Any]) -> None:
    """Hide the contents in rendered arguments, and take the text of a template without a value as no value.

    :param given: the arguments as they were before.
    """
    task.files = wrap_contents(without_none(given.get("files"), to_repeatable(task.files)), rendered=True)
    task.checksums = without_none(given.get("checksums"), task.checksums)


def file_finder(task: Any, spool: Spool) -> FindSources:
    """Return what finds the files of a task, and packs them; nothing is read or produced yet."""
    from outbound_transfer.files.archive import pack, with_checksums

    specs, archive, checksums = task.file_specs(), task.archive, task.checksums

    def find(gone: list[OutboundTransferError] | None = None) -> Sequence[Source]:
        sources: Sequence[Source] = task.find_sources(specs, spool, gone)
        task.log.info("Found %s to deliver", describe_files(sources))
        task.located = [source.location for source in sources if source.location]
        if gone or not sources:
            return sources
        if archive:
            packed = pack(archive, sources, spool)
            task.log.info("Packed %s into %s: %s", describe_files(sources), archive, format_bytes(packed.size))
            sources = [packed]
        return with_checksums(checksums, sources, spool) if checksums else sources

    return find


def specs_of(task: Any) -> list[ParsedSpec]:
    """Return what the argument ``files`` says; nothing is read or produced."""
    from outbound_transfer.files.find import parse_files

    task.files = specs = parse_files(task.files)  # a generator that a function returned yields once
    return specs


def sources_of(
    task: Any, specs: Sequence[ParsedSpec], spool: Spool, gone: list[OutboundTransferError] | None
) -> list[Source]:
    """Find the files, and produce what exists nowhere yet; none if nothing matches, and that may be.

    :param gone: takes the errors of files that are gone; None if they are not only compared with what was sent.
    """
    from outbound_transfer.files.find import resolve_files

    missing: list[OutboundTransferError] = []
    sources = resolve_files(specs, spool, missing)
    if gone is not None:
        gone += missing
        return sources
    for error in missing:
        if task.on_empty != "skip" or not isinstance(error, NothingMatches):
            raise error
        task.log.info("Skipped: %s", error)
    return sources
