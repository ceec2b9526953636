"""The arguments that say which files to deliver: rendered, wrapped and found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from outbound_transfer.airflow_compat.mapping import is_unmapped
from outbound_transfer.client.content_disposition import check_name
from outbound_transfer.client.errors import InvalidDelivery, NothingMatches
from outbound_transfer.files.content import wrap_contents
from outbound_transfer.files.progress import log_archive, log_sources
from outbound_transfer.operators.new_transfer import replace_none_texts
from outbound_transfer.operators.transfer_task import TransferTaskOperator
from outbound_transfer.tasks.arguments import is_fixed, require_choice, to_repeatable, to_whole_number

if TYPE_CHECKING:
    from outbound_transfer.client.errors import OutboundTransferError
    from outbound_transfer.files.content import Spool
    from outbound_transfer.files.sources import ParsedSpec, Source

    #: Finds the files; takes a list for the errors of those that are gone if they are compared with what was sent.
    FindSources: TypeAlias = Callable[..., Sequence[Source]]


#: Arguments that say which files to deliver.
FILES_FIELDS: Final = ("files", "archive", "checksums", "on_empty", "max_parallel_uploads")

#: Why a task is skipped.
NOTHING_MATCHES: Final = "No pattern in files matches a file"


class FilesOperator(TransferTaskOperator):
    """An operator with the arguments that say which files to attach."""

    #: Whether there is nothing to attach without the argument ``files``.
    needs_files = True
    #: What ``on_empty`` may be.
    on_empty_choices: tuple[str, ...] = ("fail", "skip")
    #: Paths and URIs of the files that this try has found.
    located: Sequence[str] = ()

    def __init__(
        self,
        *,
        files: Any,
        archive: str | None = None,
        checksums: str | None = None,
        on_empty: str = "fail",
        max_parallel_uploads: int | str = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.files = wrap_contents(given := to_repeatable(files), rendered=False)
        self._given_files = id(files)
        self.archive = archive
        self.checksums = checksums
        self.on_empty = on_empty
        self.max_parallel_uploads = max_parallel_uploads
        self._check_known_files(given)
        if self.is_known("on_empty"):
            require_choice("on_empty", on_empty, self.on_empty_choices)
        if self.is_known("max_parallel_uploads"):
            to_whole_number(max_parallel_uploads, "max_parallel_uploads")

    def _check_known_files(self, given: Any) -> None:
        """:raises InvalidDelivery, NameRefused: there is no file, or something that cannot be one."""
        listed = given if isinstance(given, list | tuple) else [given]
        known = [] if is_unmapped(self) else [each for each in listed if isinstance(each, Mapping) and is_fixed(each)]
        if known:
            from outbound_transfer.files.sources import parse_files

            parse_files(known)
        if self.needs_files and self.is_known("files") and not self.files:
            from outbound_transfer.files.sources import NO_FILES

            raise InvalidDelivery(NO_FILES)
        if self.archive and self.is_known("archive"):
            from outbound_transfer.files.archive import check_archive_name

            check_archive_name(self.archive)
        if self.checksums and self.is_known("checksums"):
            check_name(self.checksums)

    def _do_render_template_fields(
        self, parent: Any, template_fields: Any, context: Any, jinja_env: Any, seen_oids: set[int]
    ) -> None:
        if parent is self and self._given_files in seen_oids:
            # What a task returned is no template, and Airflow knows it by its id.
            template_fields = [name for name in template_fields if name != "files"]
        # Airflow stores and shows rendered fields; contents are wrapped before it does.
        templates, checksums = self.files, self.checksums
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        if parent is self:  # and not for an argument that has its own templates
            self.files = wrap_contents(replace_none_texts(templates, self.files), rendered=True)
            self.checksums = replace_none_texts(checksums, self.checksums)

    def parse_files(self, spool: Spool) -> FindSources:
        """Check the arguments, and return what finds the files, and packs them; nothing is read or produced."""
        from outbound_transfer.files.archive import check_archive_name, pack
        from outbound_transfer.files.checksum import with_checksums

        specs, archive, checksums = self.file_specs(), check_archive_name(self.archive), self.checksums or ""
        if checksums:
            check_name(checksums)

        def find(gone: list[OutboundTransferError] | None = None) -> Sequence[Source]:
            sources = log_sources(self.find_sources(specs, spool, gone), self.log)
            self.located = [source.location for source in sources if source.location]
            if not sources:
                return sources
            if archive and not gone:
                sources = [log_archive(pack(archive, sources, spool), sources, self.log)]
            return with_checksums(checksums, sources, spool) if checksums and not gone else sources

        return find

    def file_specs(self) -> list[ParsedSpec]:
        """Return what is to be delivered; nothing is read or produced."""
        from outbound_transfer.files.sources import parse_files

        self.files = specs = parse_files(self.files)  # a generator that a function returned yields once
        return specs

    def find_sources(
        self, specs: Sequence[ParsedSpec], spool: Spool, gone: list[OutboundTransferError] | None
    ) -> list[Source]:
        """Find the files, and produce what exists nowhere yet; none if nothing matches, and that may be.

        :param specs: of :meth:`file_specs`.
        :param gone: see :func:`.resolve_files`; None if they are not only compared with what was sent.
        """
        from outbound_transfer.files.sources import resolve_files

        require_choice("on_empty", self.on_empty, self.on_empty_choices)
        if self.on_empty != "skip" or gone is not None:
            return resolve_files(specs, spool, gone)
        missing: list[OutboundTransferError] = []
        sources = resolve_files(specs, spool, missing)
        for error in missing:
            if not isinstance(error, NothingMatches):
                raise error
            self.log.info("Skipped: %s", error)
        return sources
