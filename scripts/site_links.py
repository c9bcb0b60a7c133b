"""A hook of mkdocs: a page may link to any file of the repository, and what it links to becomes a page of the site.

Links are written for those who read the repository, `../palimpsest/kernels/scan.py`; here they are pointed at pages
made of these files. The nav names such a page by its place in the repository: `source/CONTRIBUTING.md`.
"""

import ast
import json
import re
from pathlib import Path
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)#\s]+)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".json": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    waiting = [path for page in files.documentation_pages() for path in linked(page.content_string, page.src_uri)]
    waiting += [path for path in nav_paths(config.nav) if path.startswith("source/")]
    while waiting:
        uri = waiting.pop()
        if files.get_file_from_path(uri) is None and (path := ROOT / place_of(uri)).exists():
            content = page_of(path)
            files.append(File.generated(config, uri, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
            waiting += linked(content, uri) if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    return outside_code(lambda text: LINK.sub(lambda link: turned(link[1], here), text), markdown)


def linked(markdown: str, page: str) -> list[str]:
    """The pages of the site that are made of what a page links to outside the docs."""
    prose = CODE.sub("", markdown)
    return [uri for uri in (uri_of(link, page) for link in LINK.findall(prose)) if uri.startswith("source/")]


def turned(link: str, page: str) -> str:
    """A link as the site has it, or as it was where it leads nowhere: mkdocs will say so."""
    uri = uri_of(link, page)
    exists = (ROOT / place_of(uri)).exists()
    return relpath(uri, Path(page).parent.as_posix()) if exists else link


def uri_of(link: str, page: str) -> str:
    place = normpath((Path(place_of(page)).parent / link).as_posix())
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    return f"source/{place}" if place.endswith(".md") else f"source/{place}.md"


def place_of(uri: str) -> str:
    """Where a page of the site comes from, in the repository."""
    if not uri.startswith("source/"):
        return f"docs/{uri}"
    place = uri.removeprefix("source/")
    return place if (ROOT / place).exists() else place.removesuffix(".md")


def page_of(path: Path) -> str:
    if path.is_dir():
        lines = [f"- `{one.name}` {summary(one)}".rstrip() for one in sorted(path.iterdir()) if one.name[0] not in "._"]
        return "\n".join([f"# {path.relative_to(ROOT)}", "", *lines, ""])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return "\n\n".join(cell_of(cell) for cell in json.loads(text)["cells"])
    return f"# {path.relative_to(ROOT)}\n\n{fenced(text, LANGUAGES.get(path.suffix, 'text'))}\n"


def summary(path: Path) -> str:
    """What a Python file says of itself."""
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.suffix == ".py" else None
    return said.splitlines()[0] if said else ""


def cell_of(cell: dict) -> str:
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "markdown" else fenced(text, "python")


def fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def nav_paths(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inside = nav.values() if isinstance(nav, dict) else nav or []
    return [path for one in inside for path in nav_paths(one)]  # pyright: ignore[reportGeneralTypeIssues]


def outside_code(change, markdown: str) -> str:
    """Everything but code changed."""
    pieces, end = [], 0
    for code in CODE.finditer(markdown):
        pieces += [change(markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*pieces, change(markdown[end:])])
