"""MkDocs hooks: show files from outside ``docs/`` on the site, so that the pages' links work there as on GitHub.

A link such as ``../dags/deliver_files.py`` leads out of the documentation's folder. Each file that a page links to in
this way becomes a page of the site: Markdown as it is, anything else as a block of code.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

#: A Markdown link or image to a relative path, with its anchor.
LINK: Final = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
#: What dbt documents of its models, as `scripts/dbt_site.py` has written it, and its place on the site.
DBT_DOCS: Final = Path(__file__).resolve().parents[1] / "build/dbt-docs.html"
DBT_PAGE: Final = "dbt.md"
REPOSITORY: Final = "repository"
LANGUAGES: Final = {".py": "python", ".sql": "sql", ".yaml": "yaml", ".toml": "toml", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside the documentation that a page of it links to, directly or not; and dbt's."""
    docs = Path(config.docs_dir)
    waiting = [docs / file.src_uri for file in files.documentation_pages()]
    added: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for path, _ in LINK.findall(page.read_text()):
            target = Path(os.path.normpath(page.parent / path))
            if target.is_relative_to(docs) or target in added or not target.exists():
                continue
            added.add(target)
            if target.suffix == ".md":
                waiting.append(target)
            if target.is_file():
                files.append(_generated(config, target, docs))
    files.append(File.generated(config, DBT_DOCS.name, abs_src_path=str(DBT_DOCS)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave the documentation's folder to the pages that :func:`on_files` added."""
    docs = Path(config.docs_dir)
    uri = page.file.src_uri
    source = _original(docs, uri)

    def rewritten(match: re.Match[str]) -> str:
        path, anchor = match.groups(default="")
        target = Path(os.path.normpath(source.parent / path))
        if target.is_dir() and (target / "README.md").exists():
            target /= "README.md"
        new = _site_uri(docs, target)
        if files.get_file_from_path(new) is None:
            return match.group()
        return f"]({os.path.relpath(new, Path(uri).parent)}{anchor})"

    if uri == DBT_PAGE:
        markdown += f"\n\n[Models, columns and lineage]({DBT_DOCS.name}), as dbt documents them.\n"
    return LINK.sub(rewritten, markdown)


def _site_uri(docs: Path, target: Path) -> str:
    if target.is_relative_to(docs):
        return target.relative_to(docs).as_posix()
    inside = target.relative_to(docs.parent).as_posix() if target.is_relative_to(docs.parent) else target.name
    return f"{REPOSITORY}/{inside}" + ("" if target.suffix in {".md", ".svg", ".png"} else ".md")


def _original(docs: Path, uri: str) -> Path:
    if not uri.startswith(f"{REPOSITORY}/"):
        return docs / uri
    path = docs.parent / uri.removeprefix(f"{REPOSITORY}/")
    return path if path.exists() else path.with_suffix("")


def _generated(config: MkDocsConfig, target: Path, docs: Path) -> File:
    uri = _site_uri(docs, target)
    if target.suffix in {".md", ".svg", ".png"}:
        return File.generated(config, uri, abs_src_path=str(target))
    text = f"# {target.name}\n\n```{LANGUAGES.get(target.suffix, 'text')}\n{target.read_text()}```\n"
    return File.generated(config, uri, content=text)
