"""Sentence pairs: read whatever they come in, batched by length, none lost and none twice, from any place on."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from palimpsest.data.pairs import TOGETHER, Pairs, PairStream, by_tokens, end_of, source_of
from palimpsest.data.parallel import LanguageFiles, ParallelText, TabSeparated, TwoFiles
from palimpsest.data.shopping_lists import ShoppingLists
from palimpsest.data.standard import catalogue, prepare
from palimpsest.data.standard_pairs import WMT14, Multi30k
from palimpsest.data.tokens import tokenise
from palimpsest.data.vocabulary import Bytes, Characters, SubWords, Words
from palimpsest.errors import UserError
from palimpsest.experiment import ParallelData
from palimpsest.serialise import from_json, to_json


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path / "cache"))


def lines(*texts: str) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def write(folder: Path, **files: bytes) -> Path:
    for name, raw in files.items():
        (folder / name.replace("__", ".")).write_bytes(raw)
    return folder


def pairs_of(corpus: ParallelText, split: str = "train") -> tuple[list[str], list[str]]:
    tokens = tokenise(corpus, Bytes())
    return tuple(Pairs(tokens.splits[split]).lines(side, tokens.codec) for side in (0, 1))


# ----------------------------------------------------------------------------------------- reading


def test_two_files_are_read_side_by_side_and_the_last_pairs_are_kept(tmp_path):
    english, german = ([f"{word} {number}" for number in range(20)] for word in ("dog", "Hund"))
    write(tmp_path, a__en=lines(*english), a__de=lines(*german))
    corpus = TwoFiles(tmp_path / "a.en", tmp_path / "a.de", valid=0.1, test=0.05)
    assert corpus.name == "a"
    assert pairs_of(corpus) == (english[:17], german[:17])
    assert pairs_of(corpus, "valid") == (english[17:19], german[17:19])
    assert pairs_of(corpus, "test") == (english[19:], german[19:])


def test_a_file_of_tabs_may_have_further_columns_and_empty_lines(tmp_path):
    (tmp_path / "p.tsv").write_bytes(b"hello\thallo\tCC-BY\r\n\nbye\ttsch\xc3\xbcss")
    found = pairs_of(TabSeparated(tmp_path / "p.tsv", valid=0.0, test=0.0))
    assert found == (["hello", "", "bye"], ["hallo", "", "tschüss"])


def test_a_folder_of_languages_is_read_in_either_direction(tmp_path):
    write(tmp_path, train__en=lines("a"), train__de=lines("b"), dev__en=lines("c"), dev__de=lines("d"))
    assert pairs_of(LanguageFiles(tmp_path), "valid") == (["c"], ["d"])
    assert pairs_of(LanguageFiles(tmp_path, "de", "en")) == (["b"], ["a"])


def test_signs_that_some_programs_take_for_line_breaks_do_not_move_lines(tmp_path):
    write(tmp_path, a__en="one\u2028still one\u0085\x0cone\ntwo\r\n".encode(), a__de=lines("eins", "zwei"))
    found = pairs_of(TwoFiles(tmp_path / "a.en", tmp_path / "a.de", valid=0.0, test=0.0))
    assert found == (["one\u2028still one\u0085\x0cone", "two"], ["eins", "zwei"])


@pytest.mark.parametrize(
    "corpus, message",
    [
        (TwoFiles(Path("a.en"), Path("a.de")), "a.en has 3 lines but a.de has 2"),
        (LanguageFiles(Path()), "no sentence pairs were given"),
        (TwoFiles(), "--source FILE and --target FILE"),
        (TabSeparated(Path("a.en")), "line 1 of a.en has no tab"),
        (TabSeparated(Path("gap.tsv")), "line 3 of gap.tsv has no tab"),
        (TabSeparated(Path("none.tsv")), "none.tsv cannot be read"),
        (TabSeparated(Path("empty.tsv")), "there are no sentence pairs"),
        (LanguageFiles(Path("uneven")), "valid split has 2 lines to translate but 1 translations"),
        (LanguageFiles(Path("sub")), "has train.en but no train.de"),
        (LanguageFiles(Path("sub"), "de", "en"), "has train.en but no train.de"),
        (LanguageFiles(Path("sub"), "fr", "it"), "no files such as train.fr and train.it"),
        (LanguageFiles(Path("twice")), "several train files"),
        (TwoFiles(Path("b.en"), Path("a.de"), valid=0.9, test=0.2), "leave nothing to train on"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(corpus, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, a__en=lines("1", "2", "3"), b__en=lines("1", "2"), a__de=lines("1", "2"))
    write(tmp_path, empty__tsv=b"", gap__tsv=lines("1\t2", "", "3"))
    for folder in ("sub", "twice", "uneven"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "uneven", valid__en=lines("1", "2"), valid__de=lines("1"))
    write(tmp_path / "sub", train__en=lines("1"))
    write(tmp_path / "twice", my_train__en=lines("1"), his_train__en=lines("1"), train__de=lines("1"))
    with pytest.raises(UserError, match=message) as refused:
        corpus.read()
    assert "\n" not in str(refused.value)


def test_shopping_lists_are_different_and_always_the_same():
    splits = ShoppingLists(pairs=200).sides()
    assert {split: len(sides.source) for split, sides in splits.items()} == {"train": 180, "valid": 10, "test": 10}
    everything = [line for sides in splits.values() for line in sides.source]
    assert len({*everything}) == 200
    assert ShoppingLists(pairs=200).sides() == splits
    assert ShoppingLists(pairs=200, seed=2).sides() != splits


@pytest.mark.parametrize("vocabulary", [SubWords(400), Characters(), Bytes()], ids=repr)
def test_both_languages_share_a_vocabulary_that_spells_them_exactly(vocabulary):
    corpus = ShoppingLists(pairs=60)
    tokens = tokenise(corpus, vocabulary)
    for split, sides in corpus.sides().items():
        for side, expected in enumerate(sides):
            assert Pairs(tokens.splits[split]).lines(side, tokens.codec) == [line.decode() for line in expected]


def test_words_which_cannot_spell_are_refused():
    with pytest.raises(UserError, match="SubWords"):
        ParallelData(vocabulary=Words())


# ------------------------------------------------------------------------------------------- batches


SENTENCES = [("a" * (1 + number % 23), "b" * (1 + number * 7 % 31)) for number in range(300)]


@pytest.fixture
def split(tmp_path):
    (tmp_path / "p.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in SENTENCES))
    return tokenise(TabSeparated(tmp_path / "p.tsv", valid=0.0, test=0.0), Bytes()).splits["train"]


def texts(batch) -> list[tuple[str, str]]:
    """What the rows of a batch say, told by their masks."""
    rows = zip(batch.source.tokens, batch.source.present, batch.targets, batch.mask, strict=True)
    return [
        (bytes(source[present].tolist()).decode(), bytes(targets[mask].tolist()).decode())
        for source, present, targets, mask in rows
    ]


def epoch_of(stream: PairStream) -> list:
    epoch, batches = stream.position()["epoch"], []
    while stream.position()["epoch"] == epoch:
        batches.append(stream.next()[0])
    return batches


def test_a_batch_is_what_a_decoder_is_to_read_and_to_say(split):
    batch = Pairs(split).batch(np.array([3, 0]))
    assert texts(batch) == [(f"{one}\n", f"{other}\n") for one, other in (SENTENCES[3], SENTENCES[0])]
    assert batch.inputs[0].tolist() == [10, *b"b" * 22]
    assert batch.targets[0].tolist() == [*b"b" * 22, 10]
    assert batch.count() == 23 + 2


def test_every_pair_is_read_once_an_epoch_but_for_a_few_that_make_no_multiple(split):
    stream = PairStream(split, tokens=400, longest=64, seed=1)
    for _ in range(2):
        batches = epoch_of(stream)
        found = [pair for batch in batches for pair in texts(batch)]
        missing = sorted({(f"{one}\n", f"{other}\n") for one, other in SENTENCES} - {*found})
        assert len(found) + TOGETHER > len(SENTENCES) >= len(found)
        assert len(missing) < TOGETHER
        assert all(len(batch.inputs) % TOGETHER == 0 for batch in batches)
    assert "300 pairs to learn from" in stream.told()


def test_no_batch_has_more_tokens_than_asked_for_on_either_side(split):
    stream = PairStream(split, tokens=200, longest=64, seed=1)
    for batch in epoch_of(stream):
        assert max(batch.inputs.numel(), batch.source.tokens.numel()) <= 200


def test_lengths_may_jump():
    lengths = np.array([4] * 25 + [100, 300])
    batches = by_tokens(np.arange(27), lengths, tokens=110)
    assert [pair for batch in batches for pair in batch] == [*range(27)]
    assert all(len(batch) * lengths[batch].max() <= 110 for batch in batches if len(batch) > 1)


def test_little_of_a_batch_is_padding(split):
    batches = epoch_of(PairStream(split, tokens=400, longest=64, seed=1))
    longer = sum(max(len(one), len(other)) for batch in batches for one, other in texts(batch))
    room = sum(max(batch.inputs.numel(), batch.source.tokens.numel()) for batch in batches)
    assert longer > 0.85 * room


def test_epochs_and_seeds_differ_in_their_order(split):
    streams = [PairStream(split, 400, 64, seed) for seed in (1, 1, 2)]
    first = [[texts(batch) for batch in epoch_of(stream)] for stream in streams]
    assert first[0] == first[1] != first[2]
    assert [texts(batch) for batch in epoch_of(streams[0])] != first[0]


def test_going_on_from_any_place_reads_what_would_have_been_read(split):
    stream = PairStream(split, 300, 64, seed=3)
    places, batches = [], []
    for _ in range(70):
        places.append(stream.position())
        batches.append(stream.next()[0])
    assert places[-1]["epoch"] > 0
    other = PairStream(split, 300, 64, seed=3)
    for place, batch in [*zip(places, batches, strict=True)][::9]:
        other.seek(place)
        assert texts(other.next()[0]) == texts(batch)
    with pytest.raises(UserError, match="is not among the"):
        other.seek({"epoch": 0, "step": 10_000})


def test_pairs_that_are_empty_or_too_long_are_counted_told_and_left_out(tmp_path):
    (tmp_path / "p.tsv").write_text("a\tb\n\tb\na\t\n\na\t  \n" + "long" * 20 + "\tb\nc\td\n")
    split = tokenise(TabSeparated(tmp_path / "p.tsv", valid=0.0, test=0.0), Bytes()).splits["train"]
    stream = PairStream(split, tokens=100, longest=20, seed=1)
    assert stream.told() == "2 pairs to learn from; left out: 4 have an empty side, 1 are too long"
    assert {pair for batch in epoch_of(stream) for pair in texts(batch)} == {("a\n", "b\n"), ("c\n", "d\n")}
    with pytest.raises(UserError, match="none of 7 pairs can be learned from"):
        PairStream(split, tokens=100, longest=1, seed=1)


def test_all_pairs_of_a_split_are_scored_the_empty_ones_too(tmp_path):
    (tmp_path / "p.tsv").write_text("a\tb\n\tb\nabc\t\n")
    pairs = Pairs(tokenise(TabSeparated(tmp_path / "p.tsv", valid=0.0, test=0.0), Bytes()).splits["train"])
    found = {}
    for chosen, batch in pairs.in_order(4):
        found.update(zip(chosen.tolist(), texts(batch), strict=True))
    assert found == {0: ("a\n", "b\n"), 1: ("\n", "b\n"), 2: ("abc\n", "\n")}


def test_lines_become_a_source_as_pairs_do(split):
    codec = Bytes().learn(b"", [])
    source = source_of(codec, ["a", "abc"])
    assert source.tokens.tolist() == [[97, 10, 0, 0], [97, 98, 99, 10]]
    assert source.present.tolist() == [[True, True, False, False], [True] * 4]
    assert end_of(codec) == 10


# ------------------------------------------------------------------------------------ published corpora


def archive(path: Path, **files: bytes) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in files.items():
            entry = tarfile.TarInfo(f"somewhere/{name.replace('__', '.')}")
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw))
    return path


def test_multi30k_is_known_by_its_names_and_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(Multi30k, "lines", {"train": 2, "valid": 1, "test": 1})
    raw = {f"{name}__{language}": lines(language) for name in ("val", "test_2016_flickr") for language in ("en", "de")}
    raw |= {"train__en": lines("a", "b"), "train__de": lines("c", "d"), "train__lc__norm__tok__en": lines("x", "y")}
    prepare(
        Multi30k, archive(tmp_path / "m.tgz", **raw, test_2017_flickr__en=lines("e"), test_2017_flickr__de=lines("f"))
    )
    assert pairs_of(Multi30k()) == (["a", "b"], ["c", "d"])
    assert pairs_of(Multi30k(source="de", target="en"), "test") == (["de"], ["en"])
    assert (Multi30k.prepared() / "test_2017_flickr.en").exists()
    with pytest.raises(UserError, match=r"lacks train\.de: multi30k needs its raw files"):
        prepare(Multi30k, archive(tmp_path / "n.tgz", **raw | {"train__de": lines("c")}))


def test_wmt14_is_put_together_of_its_parts(tmp_path):
    (tmp_path / "wmt").mkdir()
    marked = b'<doc><seg id="1"> Tom &amp; Jerry </seg>\n<seg id="2">two</seg></doc>'
    files = {f"{part}.{language}": lines(f"{part} {language}") for part in WMT14.parts for language in ("en", "de")}
    files |= {f"newstest2013.{language}": lines(language) for language in ("en", "de")}
    for name, raw in files.items():
        (tmp_path / "wmt" / name).write_bytes(raw)
    with pytest.raises(UserError, match=r"lacks test\.en, test\.de: wmt14 needs a folder with the files europarl"):
        prepare(WMT14, tmp_path / "wmt")
    archive(
        tmp_path / "wmt" / "t.tgz",
        **{f"newstest2014-deen-{side}.sgm": marked for side in ("src.en", "ref.de", "src.de")},
    )
    prepare(WMT14, tmp_path / "wmt")
    english, german = pairs_of(WMT14())
    assert english == [f"{part} en" for part in WMT14.parts]
    assert german == [f"{part} de" for part in WMT14.parts]
    assert pairs_of(WMT14(), "test") == (["Tom & Jerry", "two"], ["Tom & Jerry", "two"])
    assert sorted(path.name for path in WMT14.prepared().iterdir()) == sorted(
        f"{split}.{language}" for split in ("train", "valid", "test") for language in ("en", "de")
    )


@pytest.mark.parametrize("name", ["multi30k", "wmt14"])
def test_what_is_not_prepared_says_how_to_prepare_it(name):
    corpus = catalogue()[name]()
    with pytest.raises(UserError, match=f"{name} is not prepared: run `palimpsest data prepare {name}`"):
        corpus.read()
    assert from_json(to_json(corpus), ParallelText) == corpus
