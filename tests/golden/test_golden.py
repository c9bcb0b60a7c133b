"""The numbers of the originals, from running them: `pytest tests/golden --golden DIR` checks every case under DIR.

A case is known by what its files say, never by its name. One that is not understood fails.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import data_cases
import eval_cases
import model_cases
import op_cases
import pickle_cases
import pytest
import retrieval_cases
import schedule_cases
import stream_cases
import train_cases
from safetensors.torch import load_file

TRANSFORMER_XL = ("kimiyoung/transformer-xl", "IDSIA/lmtool-fwms")


class Case(NamedTuple):
    name: str
    check: Callable[[Path], None]  # is given a folder to work in


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        folder = metafunc.config.getoption("--golden")
        cases = find_cases(folder)
        metafunc.parametrize("case", cases, ids=[case.name for case in cases])


def test_the_original_and_we_agree(case, tmp_path):
    case.check(tmp_path)


def test_there_are_cases(request):
    assert find_cases(request.config.getoption("--golden")), "no golden case in that folder"


def find_cases(folder: Path) -> list[Case]:
    found = [Case(str(path.parent.relative_to(folder)), known(path)) for path in sorted(folder.rglob("config.json"))]
    for texts in sorted({path.parent for path in folder.rglob("txl_*.json")}):
        found.append(Case(f"{texts.relative_to(folder)} words", lambda _, texts=texts: data_cases.check(texts)))
        found.append(Case(f"{texts.relative_to(folder)} batches", lambda _, texts=texts: stream_cases.check(texts)))
    for path in sorted(folder.rglob("lr_schedules.json")):
        found.append(Case(str(path.relative_to(folder)), lambda _, path=path: schedule_cases.check(path)))
    for path in sorted(folder.rglob("span_table.json")):
        found.append(Case(str(path.relative_to(folder)), lambda _, path=path: model_cases.check_spans(path)))
    for path in sorted(folder.rglob("ops/*.safetensors")):
        found.append(Case(str(path.relative_to(folder)), lambda _, path=path: op_cases.check(path)))
    for path in sorted(folder.rglob("model.pt")):
        found.append(Case(str(path.relative_to(folder)), lambda _, path=path: check_pickle(path)))
    for path in sorted(folder.rglob("checkpoint.pt")):
        found.append(Case(str(path.relative_to(folder)), lambda _, path=path: pickle_cases.check_checkpoint(path)))
    return found


def known(path: Path) -> Callable[[Path], None]:
    """How to check the case that this config.json describes."""
    folder, config = path.parent, json.loads(path.read_text())
    if isinstance(config, list) and all("grad_clip" in setting for setting in config):
        return lambda work: schedule_cases.check_adagrad(folder)
    if config.get("repo") in TRANSFORMER_XL:
        return of_transformer_xl(folder, config)
    if "adapt_span_params" in config:
        return of_adaptive_span(folder, config)
    if is_retrieval(config) or any(map(is_retrieval, config.get("cases", []))):
        return of_retrieval(folder, config)
    if any("vocab" in case for case in config.values() if isinstance(case, dict)):
        return lambda work: (data_cases.check(folder), stream_cases.check(folder))
    return lambda work: not_understood(path, config)


def of_transformer_xl(folder: Path, config: dict[str, Any]) -> Callable[[Path], None]:
    if "runs" in config:
        return lambda work: eval_cases.check(folder, build)
    if "model_call_loss" in config:
        return lambda work: train_cases.check_transformer_xl(folder, work)
    return lambda work: model_cases.check_transformer_xl(folder)


def of_adaptive_span(folder: Path, config: dict[str, Any]) -> Callable[[Path], None]:
    if "steps" in config:
        return lambda work: (train_cases.check_adaptive_span(folder, work), stream_cases.check(folder))
    return lambda work: model_cases.check_adaptive_span(folder)


def of_retrieval(folder: Path, config: dict[str, Any]) -> Callable[[Path], None]:
    if "cases" in config:
        return lambda work: retrieval_cases.check_draws(folder)
    if "train_losses" in config:
        return lambda work: retrieval_cases.check_training(folder)
    return lambda work: retrieval_cases.check_model(folder)


def build(folder: Path):
    settings = json.loads((folder / "config.json").read_text())["constructor"]
    return model_cases.build_transformer_xl(settings, load_file(folder / "weights.safetensors"))


def check_pickle(path: Path) -> None:
    """The module is read like the weights of the case of its name, and is the same model."""
    cases = next(parent for parent in path.parents if (parent / path.parent.name / "weights.safetensors").exists())
    pickle_cases.check(path.parent, cases)
    model_cases.check_pickled(path, cases / path.parent.name)


def not_understood(path: Path, config: dict[str, Any]) -> None:
    pytest.fail(f"{path} describes a case of no known kind: {', '.join(config)}")


def is_retrieval(config: dict[str, Any]) -> bool:
    """The synthetic experiments of fast-weight-transformers."""
    return "n_keys" in config and "replace" in config
