"""Checkpoints: complete or absent, the newest few and the best kept.

checkpoints/step-00000500/model.safetensors   the weights, readable by anyone
                          training.pt         all else that is needed to go on as if nothing had happened
            best.json                         which of them scored best in validation
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from ..errors import UserError
from ..files import flush, write_atomically


class Checkpoints:
    def __init__(self, folder: Path, keep: int = 2):
        self.folder, self.keep = folder, keep

    def all(self) -> list[Path]:
        """From the oldest to the newest."""
        return sorted(path for path in self.folder.glob("step-*") if path.suffix != ".partial")

    def save(self, step: int, model: nn.Module, training: dict[str, Any]) -> Path:
        final = self.folder / f"step-{step:08d}"
        partial = final.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_model(model, str(partial / "model.safetensors"))
        torch.save(training, partial / "training.pt")
        for file in partial.iterdir():
            flush(file)
        if final.exists():  # the same step, reached again after a resume: the same numbers
            shutil.rmtree(final)
        os.replace(partial, final)
        flush(self.folder)
        return final

    def mark_best(self, step: int, nats: float) -> None:
        write_atomically(self.folder / "best.json", json.dumps({"step": step, "nats": nats}) + "\n")

    def prune(self) -> None:
        keep = {*self.all()[-self.keep :], self.best()}
        for path in self.all():
            if path not in keep:
                shutil.rmtree(path)
        for partial in self.folder.glob("*.partial"):
            shutil.rmtree(partial)

    def best(self) -> Path | None:
        try:
            return self.folder / f"step-{json.loads((self.folder / 'best.json').read_text())['step']:08d}"
        except FileNotFoundError:
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


def load_weights(model: nn.Module, checkpoint: Path) -> None:
    try:
        load_model(model, str(checkpoint / "model.safetensors"))
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"the weights in {checkpoint} do not fit the recipe or are damaged: {reason}") from error


def load_training(checkpoint: Path) -> dict[str, Any]:
    try:
        return torch.load(checkpoint / "training.pt", map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        raise UserError(f"the training state in {checkpoint} is damaged ({error}); remove that folder") from error
