"""Files that are whole or not there at all, whenever the power fails and whoever reads or writes beside us."""

import os
from pathlib import Path
from uuid import uuid4


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Under a name of its own first, flushed, then in place in one move."""
    partial = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with partial.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Onto the disk: a file, or the names in a folder where the system has such a thing."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
