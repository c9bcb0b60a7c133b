"""Files that are whole or not there at all, whenever the power fails and whoever reads or writes beside us."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

from .errors import UserError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

LOCK = ".lock"  # the file in a folder that whoever works there holds
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, one's share of it, the largest file allowed


def cache() -> Path:
    """Where everything is kept that can be had again: PALIMPSEST_CACHE, or the user's cache folder."""
    try:
        if chosen := os.environ.get("PALIMPSEST_CACHE"):
            return Path(chosen).expanduser()
        from platformdirs import user_cache_path

        return user_cache_path("palimpsest")
    except ModuleNotFoundError:
        raise UserError("finding the cache folder needs platformdirs: pip install it or set PALIMPSEST_CACHE") from None
    except RuntimeError as error:  # whoever has no home
        raise UserError(f"there is no cache folder ({error}): set PALIMPSEST_CACHE to one") from None


def sources_of(folder: Path) -> str:
    """A digest of all Python in a folder: what was made by one program is not for another."""
    return sha256(b"".join(file.read_bytes() for file in sorted(folder.rglob("*.py")))).hexdigest()[:16]


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Under a name of its own first, flushed, then in place in one move."""
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with partial.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def from_the_root(path: Path) -> Path:
    """The same wherever it is read. JSON and safetensors know no names that are not UTF-8."""
    path = Path(os.path.expanduser(path)).absolute()
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"the name {str(path)!r} is not UTF-8, as all names of a run are: choose another") from None
    return path


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): bring a copy of it back") from error
    except ValueError as error:  # UnicodeDecodeError is one too
        raise UserError(f"{path} is not JSON ({error}): mend it, or bring a copy of it back") from error


def append_line(path: Path, line: str) -> None:
    """A line of its own, also after one that a kill cut off."""
    with path.open("a+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        is_cut_off = file.read() not in (b"", b"\n")
        file.write(b"\n" * is_cut_off + line.encode() + b"\n")


def give_up(stream: TextIO) -> None:
    """What it could not write is not tried again, neither at the next line nor when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def flush(path: Path) -> None:
    """Onto the disk: a file, or the names in a folder where the system has such a thing."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """By one process at a time; a process that ends, however it ends, lets go."""
    path = folder / LOCK
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # the second look: whoever had it may have removed it after we found it
        if not lock(handle) or not (path.exists() and os.path.samestat(os.fstat(handle), path.stat())):
            raise UserError(f"another process is at work in {folder}: wait for its end, or choose another --folder")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def lock(handle: int) -> bool:
    """Whether nobody else has it; where a disk knows no locks, nobody has."""
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
    return True


@contextmanager
def told_if_full() -> Iterator[None]:
    """A disk that is full, wherever it is noticed, is the user's to clear: one line instead of a traceback."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = "" if error.filename is None else f" where {error.filename} is written"
        raise UserError(
            f"there is no room left{where} ({error.strerror}): all that was saved is whole; make room, then go on "
            "with `palimpsest resume`"
        ) from error
