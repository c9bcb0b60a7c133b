"""From a checkpoint of an original to a run folder, which can be evaluated, generated from and trained further."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..data.codec import Codec
from ..data.corpora import Corpus
from ..data.downloads import Unreachable, download
from ..data.streams import Contiguous
from ..data.vocabulary import Vocabulary
from ..errors import UserError, unknown
from ..evaluation.perplexity import CachedMemory, CarriedState, Protocol, Segments
from ..experiment.recipe import Data, Recipe
from ..experiment.run import new_folder, write_json
from ..experiment.trained import read_codec
from ..files import cache
from ..serialise import to_json
from ..training.checkpoint import Checkpoints
from ..training.trainer import Run
from ..version import __version__
from . import from_adaptive_span, from_fla, from_transformer_xl, pickles
from .corpora import ADAPTIVE_SPAN, ADAPTIVE_SPAN_SORTED, TRANSFORMER_XL, Reading, learn, reading_of
from .settings import Imported

# the vocabulary of a published corpus tells which one it is
SIZES = {204: "enwik8", 27: "text8", 267735: "wt103", 33278: "wt2", 10000: "ptb"}
ADAPTIVE_SPAN_SIZES = {205: "enwik8", 28: "text8", 267735: "wikitext-103"}
PUBLISHED = "https://dl.fbaipublicfiles.com/adaptive-span/{}.pt"
PUBLISHED_NAMES = ("enwik8", "text8", "enwik8_large", "text8_large")


class TrainedOn(NamedTuple):
    """What a model was trained on, and its tokens."""

    corpus: Corpus
    vocabulary: Vocabulary
    codec: Codec


@dataclass(frozen=True)
class Original:
    """How one of the originals is read."""

    translate: Callable[[Mapping[str, Tensor], Mapping[str, Any]], Imported]
    told_by_module: Callable[[Mapping[str, Any]], dict[str, Any]]
    trained_on: Callable[[Imported, Path | None, str | None], TrainedOn]  # from --data and --dataset
    protocol: Callable[[Imported], Protocol]
    read: Callable[[Path], pickles.Checkpoint] = pickles.read


def counted(
    readings: Callable[[Imported], dict[str, Reading]], sizes: dict[int, str]
) -> Callable[[Imported, Path | None, str | None], TrainedOn]:
    """The vocabulary is counted again from the data, which the original knows by names of its own."""

    def trained_on(imported: Imported, data: Path | None, dataset: str | None) -> TrainedOn:
        reading = choose_reading(readings(imported), sizes, imported.tokens, data, dataset)
        return TrainedOn(*reading, learn(reading))

    return trained_on


def of_a_run(imported: Imported, data: Path | None, dataset: str | None) -> TrainedOn:
    """The vocabulary is that of a run of ours: tokenisers of other toolkits are not read."""
    if data is None or not (data / "vocabulary.json").exists():
        raise UserError(
            f"a model of {imported.settings.original} does not say what its {imported.tokens:,} tokens are: give a run "
            "of palimpsest with the same vocabulary with --data, or use the model from Python: "
            "palimpsest.legacy.from_fla.from_folder(FOLDER).build()"
        )
    told = Recipe.read(data / "recipe.json").data
    return TrainedOn(told.corpus, told.vocabulary, read_codec(data))


def adaptive_span_readings(imported: Imported) -> dict[str, Reading]:
    """Only an adaptive embedding wants its vocabulary sorted."""
    return ADAPTIVE_SPAN_SORTED if hasattr(imported.model.embedding, "cutoffs") else ADAPTIVE_SPAN


def with_memory(imported: Imported) -> Protocol:
    """As long a memory as in training, and segments as long."""
    settings = imported.settings
    segment, memory = settings["tgt_len"], settings["mem_len"]
    if not memory:
        return CarriedState(segment) if settings["carry_over_fast_weight"] else Segments(segment)
    return CachedMemory(segment, memory, same_length=bool(settings["same_length"]))


ORIGINALS = {
    **dict.fromkeys(
        ("transformer-xl", "lmtool-fwms"),
        Original(
            from_transformer_xl.translate,
            from_transformer_xl.told_by_module,
            counted(lambda imported: TRANSFORMER_XL, SIZES),
            with_memory,
        ),
    ),
    "adaptive-span": Original(
        from_adaptive_span.translate,
        lambda attributes: {},
        counted(adaptive_span_readings, ADAPTIVE_SPAN_SIZES),
        lambda imported: CarriedState(),
    ),
    from_fla.ORIGINAL: Original(from_fla.translate, dict, of_a_run, lambda imported: CarriedState(), from_fla.read),
}


def import_checkpoint(
    path: Path,
    original: str,
    data: Path | None = None,
    dataset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Path:
    """A new run folder with the model of the checkpoint; `settings`, in the original's words, go before its own."""
    if original not in ORIGINALS:
        raise unknown("original", original, list(ORIGINALS))
    how = ORIGINALS[original]
    checkpoint = how.read(path)
    imported = how.translate(checkpoint.weights, {**how.told_by_module(checkpoint.attributes), **(settings or {})})
    network = imported.build()
    trained_on = how.trained_on(imported, data, dataset)
    if trained_on.codec.size != imported.tokens:
        raise UserError(
            f"the vocabulary of {trained_on.corpus.name} has {trained_on.codec.size:,} tokens, but the checkpoint "
            f"knows {imported.tokens:,}: give the data that it was trained on with --data"
        )
    protocol = how.protocol(imported)
    recipe = Recipe(
        name=f"{original}-{path.name if path.is_dir() else path.stem}",
        data=Data(trained_on.corpus, trained_on.vocabulary, Contiguous(), segment=imported.segment),
        model=imported.model,
        run=Run(carry=not isinstance(protocol, Segments)),
        evaluation=protocol,
    )
    with new_folder(folder, recipe.name) as folder:
        write_json(folder / "vocabulary.json", trained_on.codec.to_json())
        found = {"imported": {"from": original, "checkpoint": path.name}, "palimpsest": __version__}
        write_json(folder / "environment.json", found | {"parameters": sum(p.numel() for p in network.parameters())})
        Checkpoints(folder / "checkpoints").save(0, network, {})
        write_json(folder / "recipe.json", to_json(recipe))
        return folder


def choose_reading(
    known: dict[str, Reading], sizes: dict[int, str], tokens: int, data: Path | None, dataset: str | None
) -> Reading:
    if dataset is None:
        dataset = sizes.get(tokens)
        if dataset is None:
            raise UserError(
                f"a vocabulary of {tokens:,} tokens is that of no corpus the original knows: say which with --dataset, "
                f"one of {', '.join(known)}, and where its files are with --data"
            )
    if data is not None:
        return reading_of(data, dataset, known)
    if dataset not in known:
        raise unknown("dataset", dataset, list(known))
    return known[dataset]


def published(name: str, progress: Callable[[int, int | None], object]) -> Path:
    """One of the models that adaptive-span published, downloaded once."""
    if name not in PUBLISHED_NAMES:
        raise unknown("checkpoint file or published adaptive-span model", name, list(PUBLISHED_NAMES))
    path, address = cache() / "models" / f"adaptive-span-{name}.pt", PUBLISHED.format(name)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    try:
        download(address, partial, progress)
    except Unreachable as reason:
        raise UserError(f"{address} cannot be had ({reason}): put that file at {path} and ask again") from None
    partial.rename(path)
    return path
