"""Hooks of MkDocs: the site's pages and files that are not in ``docs/``, and links to them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Pages outside of docs/ by their place in the repository, and their place in the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "benchmarks/RESULTS.md": "benchmarks/RESULTS.md",
    "benchmarks/peers/RESULTS.md": "benchmarks/peers/RESULTS.md",
    "deploy/README.md": "deploy/README.md",
    "deploy/helm/README.md": "deploy/helm/README.md",
    "examples/airflow/README.md": "examples/airflow/README.md",
    "examples/dagster/README.md": "examples/dagster/README.md",
}
SOURCES = {place: path for path, place in ROOT_PAGES.items()}
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)((?:#[^)\s]*)?)\)")
# A picture for light and one for dark pages, as GitHub shows it.
PICTURE = re.compile(r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img alt="([^"]*)" src="([^"]+)">\s*</picture>')


def on_config(config: Any) -> Any:
    """Anchors as GitHub makes them, and diagrams."""
    from pymdownx.slugs import slugify
    from pymdownx.superfences import fence_code_format

    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [
        {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
    ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside of docs/, and each file there that a page links to."""
    from mkdocs.structure.files import File

    for path, place in ROOT_PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    for page in list(files.documentation_pages()):
        for target, _ in LINK.findall(as_links(page.content_string)):
            place = place_of(page.src_uri, target)
            if files.get_file_from_path(place) is None and (ROOT / place).is_file():
                files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with its links as they are in the site."""
    here = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        return f"]({posixpath.relpath(place_of(page.file.src_uri, link[1]), here or '.')}{link[2]})"

    return LINK.sub(moved, as_links(markdown))


def as_links(markdown: str) -> str:
    """Its pictures as images of the theme, which shows one of the two."""
    return PICTURE.sub(
        lambda found: f"![{found[2]}]({found[3]}#only-light)![{found[2]}]({found[1]}#only-dark)", markdown
    )


def place_of(page: str, target: str) -> str:
    """Where in the site a link of a page leads to. Of a file outside of docs/, that is its place in the repository."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(SOURCES.get(page, f"docs/{page}")), target))
    return ROOT_PAGES.get(path, path.removeprefix("docs/"))
