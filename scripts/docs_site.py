"""MkDocs hooks: add files from outside ``docs/`` to the site, and link the names and rules that pages cite.

A link to a Markdown file or an image outside ``docs/``, such as ``../CONTRIBUTING.md``, adds that file to the site. A
link to any other file leads to the repository.
"""

from __future__ import annotations

import ast
import functools
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File
from mkdocs.utils import get_relative_url

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

#: A warning fails the strict build.
LOG: Final = get_plugin_logger("docs_site")
ROOT: Final = Path(__file__).resolve().parents[1]
#: A Markdown link or image to a relative path, with its anchor.
LINK: Final = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
#: The dbt documentation that `scripts/dbt_site.py` writes, and the page that links to it.
DBT_DOCS: Final = ROOT / "build/dbt-docs.html"
DBT_PAGE: Final = "dbt.md"
SERVICE_PAGE: Final = "service-api.md"
REPOSITORY: Final = "repository"
SHOWN: Final = {".md", ".svg", ".png"}
#: A Sphinx role in a docstring, as Markdown renders it.
ROLE: Final = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>~?\.?([\w.]+)</code>")
RULE: Final = re.compile(r"\bR(\d+)\b")
#: Cited rules of the service, or one rule without its page; what cannot contain a link comes first.
CITATION: Final = re.compile(
    r"<(h[1-6]|pre|code|a|autoref)\b.*?</\1>|<[^>]*>"
    r"|service-api\.md,\s+(?P<rules>R\d+(?:(?:,|,?\s+(?:and|or|to))\s+R\d+)*)|\bR\d+\b",
    re.DOTALL,
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version in the footer of each page."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "plugins/outbound_transfer/__init__.py").read_text())
    assert version
    config.copyright = f"Version {version[1]}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each Markdown file or image that a page links to, directly or indirectly, and dbt's documentation."""
    docs = Path(config.docs_dir)
    waiting = [docs / file.src_uri for file in files.documentation_pages()]
    added: set[Path] = set()
    while waiting:
        page = waiting.pop()
        for path, _ in LINK.findall(page.read_text()):
            target = _target(page, path)
            if target.is_relative_to(docs) or target in added or target.suffix not in SHOWN or not target.exists():
                continue
            added.add(target)
            if target.suffix == ".md":
                waiting.append(target)
            files.append(File.generated(config, _site_uri(docs, target), abs_src_path=str(target)))
    files.append(File.generated(config, DBT_DOCS.name, abs_src_path=str(DBT_DOCS)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave ``docs/`` to the site or the repository, and rank users' pages first in the search."""
    docs = Path(config.docs_dir)
    uri = page.file.src_uri
    source = ROOT / uri.removeprefix(f"{REPOSITORY}/") if uri.startswith(f"{REPOSITORY}/") else docs / uri

    if uri.startswith(("adr/", "reference/", f"{REPOSITORY}/")):
        page.meta["search"] = {"boost": 0.5}

    def rewritten(match: re.Match[str]) -> str:
        path, anchor = match.groups(default="")
        target = _target(source, path)
        new = _site_uri(docs, target)
        if files.get_file_from_path(new) is not None:
            return f"]({os.path.relpath(new, Path(uri).parent)}{anchor})"
        if target.exists():
            return f"]({config.repo_url}/blob/main/{target.relative_to(ROOT)}{anchor})"
        return match.group()

    if uri == DBT_PAGE:
        markdown += f"\n\n[Models, columns and lineage]({DBT_DOCS.name}), as dbt documents them.\n"
    return LINK.sub(rewritten, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Link the names that docstrings cite, and the service's rules."""
    uri = page.file.src_uri
    links_bare_rules = uri == SERVICE_PAGE or uri.startswith("reference/")
    rules = get_relative_url("service-api/", page.url)

    def named(match: re.Match[str]) -> str:
        name = match[1]
        code = f"<code>{name.rpartition('.')[2]}</code>"
        full = name if name.startswith("outbound_transfer") else documented_names().get(name)
        if full is None:
            LOG.warning("%s: the role target '%s' is missing or ambiguous", uri, name)
            return code
        return f'<autoref identifier="{full}">{code}</autoref>'

    def linked(match: re.Match[str]) -> str:
        cited = match["rules"] or (match[0] if links_bare_rules and match[0][0] == "R" else "")
        return RULE.sub(rule_link, cited) if cited else match[0]

    def rule_link(match: re.Match[str]) -> str:
        if match[1] not in rule_anchors():
            LOG.warning("%s: the service has no rule %s", uri, match[0])
            return match[0]
        return f'<a href="{rules}#{rule_anchors()[match[1]]}">{match[0]}</a>'

    return CITATION.sub(linked, ROLE.sub(named, html))


@functools.cache
def documented_names() -> dict[str, str]:
    """Return the full name of each class, function and method whose short name is unique."""
    found = [*_names_in(ROOT / "plugins"), *_names_in(ROOT / "include")]
    uses = Counter(short for short, _ in found)
    return {short: full for short, full in found if uses[short] == 1}


def _names_in(folder: Path) -> Iterator[tuple[str, str]]:
    kinds = (ast.ClassDef, ast.FunctionDef)
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, kinds):
                yield node.name, f"{module}.{node.name}"
                inner = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
                yield from ((f"{node.name}.{name}", f"{module}.{node.name}.{name}") for name in inner)


@functools.cache
def rule_anchors() -> dict[str, str]:
    """Return the anchor of each of the service's rules, by number."""
    headings = re.findall(r"^#+ (R(\d+)\b.*)$", (ROOT / "docs" / SERVICE_PAGE).read_text(), re.MULTILINE)
    return {number: re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text, number in headings}


def _target(page: Path, path: str) -> Path:
    target = Path(os.path.normpath(page.parent / path))
    return target / "README.md" if target.is_dir() and (target / "README.md").exists() else target


def _site_uri(docs: Path, target: Path) -> str:
    if target.is_relative_to(docs):
        return target.relative_to(docs).as_posix()
    return f"{REPOSITORY}/{target.relative_to(ROOT).as_posix()}" if target.is_relative_to(ROOT) else target.name
