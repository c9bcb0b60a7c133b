"""Files from elsewhere: downloaded, checked, and unpacked whatever they are packed in."""

import bz2
import gzip
import hashlib
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

from ..errors import UserError
from ..files import flush

BLOCK = 2**20  # bytes
PATIENCE = 30  # seconds without an answer
PACKINGS = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError)


class Unreachable(Exception):
    """An address that does not give its file, and why."""


def download(address: str, path: Path, progress: Callable[[int, int | None], object] = lambda done, all: None) -> None:
    """The file at the address; `progress` is told the bytes so far and how many there are, where that is known."""
    try:
        # some hosts refuse the library's own name
        with urlopen(Request(address, headers={"User-Agent": "palimpsest"}), timeout=PATIENCE) as answer:
            length = answer.headers.get("Content-Length")
            done = _copy(answer, path, length and int(length), progress)
    except HTTPError as error:
        raise Unreachable(f"it answers {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise Unreachable(str(getattr(error, "reason", error)) or type(error).__name__) from None
    if length and done != int(length):
        raise Unreachable(f"it was cut off after {done:,} of {int(length):,} bytes")


def _copy(source: IO[bytes], path: Path, length: int | None, progress: Callable[[int, int | None], object]) -> int:
    done = 0
    with path.open("xb") as file:
        while block := source.read(BLOCK):
            file.write(block)
            done += len(block)
            progress(done, length)
    return done


def matches(path: Path, checksum: str) -> bool:
    """Whether a file has a checksum such as `md5:a1fa…`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, checksum.partition(":")[0]).hexdigest() == checksum.partition(":")[2]


def checksum_of(raw: bytes, algorithm: str) -> str:
    return f"{algorithm}:{hashlib.new(algorithm, raw).hexdigest()}"


def contents(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Every file in a folder, an archive or a packed file, archives inside archives too, with its name."""
    files = [path] if path.is_file() else sorted(inner for inner in path.rglob("*") if inner.is_file())
    for file in files:
        try:
            with file.open("rb") as opened:
                yield from _unpacked(file.name, opened)
        except DAMAGE as error:
            raise UserError(f"{file} cannot be unpacked ({error}): it was damaged or cut off, get it again") from None
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror or error}") from None


def _unpacked(name: str, file: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    """What it is packed in is told by its first bytes, not by its name."""
    head = file.read(6)
    file.seek(0)
    if head.startswith(b"PK"):
        with zipfile.ZipFile(file) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    with archive.open(entry) as inner:
                        yield from _unpacked(entry.filename, inner)
        return
    for magic, opener in PACKINGS.items():
        if head.startswith(magic):
            with opener(file) as inner:
                yield from _unpacked(Path(name).stem, inner)  # pyright: ignore[reportArgumentType]
            return
    try:
        archive = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115
    except tarfile.ReadError:
        file.seek(0)
        yield name, file
        return
    with archive:
        for entry in archive:
            inner = archive.extractfile(entry) if entry.isfile() else None
            if inner is not None:
                yield from _unpacked(entry.name, inner)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill that takes its name only once all in it is written; what was there before makes way then."""
    target.parent.mkdir(parents=True, exist_ok=True)
    workshop = target.with_name(f".{target.name}.{uuid4().hex}")
    folder = workshop / "new"
    try:
        folder.mkdir(parents=True)
        yield folder
        for path in (*(inner for inner in folder.rglob("*") if inner.is_file()), folder):
            flush(path)
        if target.exists():
            target.rename(workshop / "old")
        folder.rename(target)
        flush(target.parent)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
