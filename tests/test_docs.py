"""What the docs say is true: their python blocks run, each by itself, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


BLOCKS = [
    pytest.param(page, block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page), start=1)
]


@pytest.mark.parametrize("page, block", BLOCKS)
def test_every_python_block_runs(page, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, page.name, "exec"), {"__name__": "__main__"})


def test_every_way_to_use_a_part_alone_is_checked_where_it_is_shown():
    shown = blocks(DOCS / "parts-alone.md")
    assert len(shown) == 5
    assert all(re.search(r"^assert ", block, re.MULTILINE) for block in shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_a_page_links_to_exists(page):
    prose = re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!http|#)([^)#]+)", prose)
    assert not [link for link in links if not (DOCS / link).exists()]
