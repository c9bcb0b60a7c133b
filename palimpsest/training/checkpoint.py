"""Checkpoints: complete or absent, the newest few and the best kept.

checkpoints/step-00000500/model.safetensors   the weights, readable by anyone
                          training.pt         all else that is needed to go on as if nothing had happened
                          manifest.json       checksums of both, written last
            best.json                         which of them scored best in validation

`step-….partial` is one being written or removed, `step-….damaged` one that could not be read: neither counts.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from ..errors import UserError
from ..files import flush, write_atomically

MANIFEST = "manifest.json"


class Checkpoints:
    def __init__(self, folder: Path, keep: int = 2):
        self.folder, self.keep = folder, keep

    def all(self) -> list[Path]:
        """From the oldest to the newest."""
        return sorted(path for path in self.folder.glob("step-*") if not path.suffix)

    def save(self, step: int, model: nn.Module, training: dict[str, Any]) -> Path:
        final = self.folder / f"step-{step:08d}"
        if is_whole(final):  # the same step, reached again after a resume: the same numbers
            return final
        partial = final.with_suffix(".partial")
        self.remove("partial")  # room first: a run that was killed while it saved may have left one
        try:
            partial.mkdir(parents=True)
            save_model(model, str(partial / "model.safetensors"))
            torch.save(training, partial / "training.pt")
            seal(partial)
            self.set_aside(final)
            os.replace(partial, final)
            flush(self.folder)
        except (OSError, SafetensorError, RuntimeError) as error:  # a full disk is any of these, by who writes
            refusal = UserError(self.refuse(final.name, error))
            shutil.rmtree(partial, ignore_errors=True)
            raise refusal from error
        return final

    def refuse(self, name: str, error: Exception) -> str:
        run, before = self.folder.parent, [path.name for path in self.all()]
        kept = f"{before[-1]} is whole" if before else "there is none before it"
        free = f"{shutil.disk_usage(run).free / 2**30:.2f} GiB free"
        return (
            f"{self.folder / name} could not be written ({first_line(error)}; {free}), but {kept}: "
            f"make room on that disk, then go on with `palimpsest resume {run}`"
        )

    def set_aside(self, checkpoint: Path) -> None:
        """One that cannot be read no longer counts; it goes when a new one has been written."""
        if checkpoint.exists():
            aside = checkpoint.with_suffix(".damaged")
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(checkpoint, aside)

    def mark_best(self, step: int, nats: float) -> None:
        write_atomically(self.folder / "best.json", json.dumps({"step": step, "nats": nats}) + "\n")

    def prune(self) -> None:
        keep = {*self.all()[-self.keep :], self.best()}
        for path in self.all():
            if path not in keep:
                # under a name that does not count first: one half removed would look damaged
                os.replace(path, path.with_suffix(".partial"))
        self.remove("partial")
        self.remove("damaged")

    def remove(self, suffix: str) -> None:
        for path in self.folder.glob(f"step-*.{suffix}"):
            shutil.rmtree(path)

    def best(self) -> Path | None:
        try:
            return self.folder / f"step-{json.loads((self.folder / 'best.json').read_text())['step']:08d}"
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # a file that cannot be read names none
            return None

    def find(self, name: str) -> Path:
        """`best`, `latest` or the name of one."""
        found = self.all()
        if not found:
            raise UserError(f"there is no checkpoint in {self.folder} yet")
        if name == "latest" or (name == "best" and self.best() not in found):
            return found[-1]
        path = self.best() if name == "best" else self.folder / name
        if path is None or path not in found:
            raise UserError(f"no checkpoint {name!r} in {self.folder}; there are {', '.join(p.name for p in found)}")
        return path

    def find_all(self, name: str) -> list[Path]:
        """`last-5` is the newest five; any other name is that of one."""
        newest = re.fullmatch(r"last-([1-9]\d*)", name)
        if newest is None:
            return [self.find(name)]
        found, wanted = self.all(), int(newest[1])
        if len(found) < wanted:
            raise UserError(
                f"{self.folder} has {len(found)} checkpoints, not {wanted}: train with --run.keep {wanted} for so many"
            )
        return found[-wanted:]


def load_mean(model: nn.Module, checkpoints: Sequence[Path]) -> None:
    """The mean of their parameters; buffers are those of the newest."""
    means = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in model.parameters()]
    for checkpoint in checkpoints:
        load_weights(model, checkpoint)
        for mean, parameter in zip(means, model.parameters(), strict=True):
            mean += parameter.detach() / len(checkpoints)
    with torch.no_grad():
        for mean, parameter in zip(means, model.parameters(), strict=True):
            parameter.copy_(mean)


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    check(checkpoint / "model.safetensors")
    try:
        load_model(model, str(checkpoint / "model.safetensors"))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise UserError(
            f"the weights in {checkpoint} do not fit the recipe or are damaged: {first_line(error)}"
        ) from error


def load_training(checkpoint: Path) -> dict[str, Any]:
    check(checkpoint / "training.pt")
    try:
        return torch.load(checkpoint / "training.pt", map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that are no pickle can raise nearly anything
        raise UserError(f"the training state in {checkpoint} is damaged: {first_line(error)}") from error


def seal(folder: Path) -> None:
    """Onto the disk, every file before the manifest that vouches for it."""
    files = sorted(folder.iterdir())
    for file in files:
        flush(file)
    write_atomically(folder / MANIFEST, json.dumps({file.name: checksum(file) for file in files}, indent=2) + "\n")


def check(file: Path) -> None:
    """Refuse a file that is not what was written; one from before there were manifests is taken as it is."""
    try:
        manifest = json.loads((file.parent / MANIFEST).read_text())
    except FileNotFoundError:
        manifest = None
    except (OSError, ValueError) as error:
        raise UserError(f"{file.parent} is damaged: {MANIFEST} cannot be read ({first_line(error)})") from error
    try:
        found = checksum(file)
    except OSError as error:
        raise UserError(f"{file.parent} is damaged: {file.name} cannot be read ({first_line(error)})") from error
    if manifest is not None and (not isinstance(manifest, dict) or manifest.get(file.name) != found):
        raise UserError(f"{file.parent} is damaged: {file.name} is not what was written there")


def is_whole(checkpoint: Path) -> bool:
    try:
        for name in ("model.safetensors", "training.pt"):
            check(checkpoint / name)
    except UserError:
        return False
    return True


def checksum(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
