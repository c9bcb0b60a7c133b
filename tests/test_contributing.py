"""What CONTRIBUTING promises: one class in one file, and everything else follows."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def patched(tmp_path) -> Path:
    """A copy of the project with the diff of CONTRIBUTING applied."""
    for name in ("palimpsest", "tests", "pyproject.toml"):
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, tmp_path / name)
    diff = re.search(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert diff, "CONTRIBUTING shows a diff"
    subprocess.run(["git", "apply", "-"], input=diff[1], cwd=tmp_path, text=True, check=True)
    changed = set(re.findall(r"^\+\+\+ b/(.*)$", diff[1], re.MULTILINE))
    assert changed == {"palimpsest/memory/feature_maps.py"}, "one file"
    return tmp_path


def python(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, '.'); " + arguments[0], *arguments[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_laws(folder: Path, files: list[str]) -> str:
    return python(
        folder, "import pytest; sys.exit(pytest.main(sys.argv[1:]))", *files, "-n0", "-q", "-k", "Exponential"
    )


@pytest.mark.slow
def test_the_new_feature_map_is_shown_exchanged_and_covered_by_the_laws_of_parts(patched):
    shown = python(patched, "from palimpsest.cli import main; main(['ls', 'parts'])")
    assert "exp(x), never zero." in shown
    dry = python(
        patched, "from palimpsest.cli import main; main(['train', '--dry-run', '--feature-map', 'Exponential'])"
    )
    assert '"part": "Exponential"' in dry
    assert re.search(r"[1-9]\d* passed", run_laws(patched, ["tests/laws/test_parts.py"]))


@pytest.mark.slow
def test_the_new_feature_map_is_covered_by_the_laws_of_mixers(patched):
    assert re.search(r"[1-9]\d* passed", run_laws(patched, ["tests/laws/test_mixers.py"]))
