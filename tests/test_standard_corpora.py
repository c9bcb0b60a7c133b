"""Standard corpora: found whatever they come in, checked, laid out whole, and read as each original reads them."""

import bz2
import gzip
import hashlib
import json
import lzma
import re
import shutil
import tarfile
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from palimpsest.cli import main
from palimpsest.data.codec import passages
from palimpsest.data.downloads import Unreachable, download
from palimpsest.data.standard import (
    Enwik8,
    Mark,
    OneBillionWord,
    PennTreebank,
    Text8,
    WikiText2,
    WikiText103,
    catalogue,
    named,
    prepare,
)
from palimpsest.data.tokens import tokenise
from palimpsest.data.vocabulary import Bytes, Characters, Words, codec_from_json
from palimpsest.errors import UserError
from palimpsest.legacy.corpora import (
    ADAPTIVE_SPAN,
    ADAPTIVE_SPAN_SORTED,
    TRANSFORMER_XL,
    AdaptiveSpanEnwik8,
    AdaptiveSpanText8,
    TransformerXLEnwik8,
    TransformerXLOneBillionWord,
    TransformerXLText8,
    from_decimals,
    vocabulary_from,
)
from palimpsest.legacy.vocabularies import (
    AdaptiveSpanBytes,
    AdaptiveSpanWords,
    TransformerXLBytes,
    TransformerXLWordList,
    TransformerXLWords,
    count_bytes,
    sentences,
)
from palimpsest.serialise import from_json, to_json

CORPORA = Path(__file__).parent / "corpora"
WIKI, LETTERS = (CORPORA / "enwik8" / "enwik8").read_bytes(), (CORPORA / "text8" / "text8").read_bytes()
SPLITS = ("train", "valid", "test")
WORDS = {split: (CORPORA / "words" / f"{split}.txt").read_bytes() for split in SPLITS}
CUTS = {"train": slice(80), "valid": slice(80, 90), "test": slice(90, 100)}


@pytest.fixture(autouse=True)
def small_corpora(monkeypatch, tmp_path):
    """The published sizes and checksums give way to those of the tiny files."""
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path / "cache"))
    for kind, raw in ((Enwik8, WIKI), (Text8, LETTERS)):
        monkeypatch.setattr(kind, "lengths", (80, 10, 10))
        monkeypatch.setattr(kind, "checksum", f"md5:{hashlib.md5(raw).hexdigest()}")
    sums = {split: f"sha256:{hashlib.sha256(raw).hexdigest()}" for split, raw in WORDS.items()}
    monkeypatch.setattr(PennTreebank, "marks", {split: Mark(sums[split]) for split in SPLITS})
    monkeypatch.setattr(WikiText2, "marks", {split: Mark(sums[split], 1) for split in SPLITS})
    monkeypatch.setattr(WikiText103, "marks", {**WikiText2.marks, "train": Mark(None, 25)})
    monkeypatch.setattr(WikiText103, "packed", None)
    monkeypatch.setattr(OneBillionWord, "parts", 2)
    monkeypatch.setattr(OneBillionWord, "lines", 3)


def refused(*arguments) -> str:
    with pytest.raises(UserError) as error:
        prepare(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def left_behind(tmp_path) -> list[Path]:
    return list((tmp_path / "cache" / "corpora").glob("*")) + list((tmp_path / "cache" / "corpora").glob(".*"))


# -------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("name", ["enwik8", "text8", "wikitext-103", "wikitext-2", "penn-treebank", "one-billion-word"])
def test_a_corpus_that_is_not_prepared_says_how_to_prepare_it(name):
    assert named(name) is catalogue()[name]
    with pytest.raises(UserError, match=f"{name} is not prepared: run `palimpsest data prepare {name}`$"):
        named(name)().read()


def test_a_folder_without_the_splits_is_named(tmp_path):
    with pytest.raises(UserError, match=f"has no train, valid or test file in {tmp_path}"):
        WikiText2(tmp_path).read()


def test_names_may_be_spelt_as_people_do():
    assert {named(name) for name in ("WikiText103", "wikitext_103", "WIKITEXT-103")} == {WikiText103}
    with pytest.raises(UserError, match="did you mean enwik8"):
        named("enwki8")


def test_every_byte_is_kept_and_newlines_too():
    prepare(Enwik8, CORPORA / "enwik8")
    tokens = tokenise(Enwik8(), Bytes())
    assert [split.tokens for split in tokens.splits.values()] == [80, 10, 10]
    assert b"".join(Enwik8().read().values()) == WIKI
    assert WIKI.count(b"\n") > 3


def test_letters_are_read_as_characters():
    prepare(Text8, CORPORA / "text8" / "text8")
    assert tokenise(Text8(), Characters()).codec.size == len(set(LETTERS))


def test_published_splits_are_read_as_they_are():
    prepare(PennTreebank, CORPORA / "words")
    assert PennTreebank().read() == WORDS


def test_one_billion_word_has_many_files_and_a_test_split_of_its_own():
    prepare(OneBillionWord, CORPORA / "lm1b")
    assert [path.name for path in OneBillionWord().files()["train"]] == [
        "news.en-00001-of-00100",
        "news.en-00002-of-00100",
    ]
    tokens = tokenise(OneBillionWord(), Words())
    shown = {name: tokens.codec.decode(split.ids) for name, split in tokens.splits.items()}
    assert shown["train"].count("\n") == 3
    assert (shown["valid"], shown["test"]) == ("The jam was sour .\n", "Nobody ate the <unk> .\n")


def test_a_path_of_ones_own_may_hold_the_splits_under_their_published_names(tmp_path):
    (tmp_path / "wiki.valid.tokens").write_text("a b\n")
    assert WikiText103(tmp_path).read() == {"valid": b"a b\n"}
    (tmp_path / "ptb.valid.txt").write_text("c\n")
    with pytest.raises(UserError, match=r"more than one valid file .* call the right one valid\.txt"):
        WikiText103(tmp_path).read()
    (tmp_path / "valid.txt").write_text("d\n")
    assert WikiText103(tmp_path).read() == {"valid": b"d\n"}


@pytest.mark.parametrize("size", [0, 1, 5, 1000])
def test_passages_are_whole_lines_and_lose_nothing(size):
    text = "\n\nnaïve\n jam and more jam\nend"
    pieces = list(passages(text.encode(), size))
    assert "".join(pieces) == text
    assert all(piece.endswith("\n") for piece in pieces[:-1])


def test_a_byte_that_is_not_text_is_found_in_its_passage():
    with pytest.raises(UserError, match="0xff at offset 6"):
        list(passages(b"ab\ncd\n\xff", 1))


# -------------------------------------------------------------------------------------------- preparing


def packed(how: str, folder: Path) -> Path:
    """The hundred bytes under a name that says nothing."""
    path = folder / "something"
    if how in ("gz", "xz", "bz2"):
        opener = {"gz": gzip, "xz": lzma, "bz2": bz2}[how]
        path.write_bytes(opener.compress(WIKI))
    elif how == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inner/README", "not this")
            archive.writestr("inner/w", WIKI)
    elif how.startswith("tar"):
        with tarfile.open(path, f"w:{how.partition('.')[2]}") as archive:
            archive.add(CORPORA / "text8" / "text8")
            archive.add(CORPORA / "enwik8" / "enwik8", "a/b/c")
    else:
        path.write_bytes(WIKI)
    return folder if how == "folder" else path


@pytest.mark.parametrize("how", ["plain", "folder", "gz", "xz", "bz2", "zip", "tar", "tar.gz", "tar.xz"])
def test_a_corpus_is_found_by_its_content_whatever_it_is_packed_in(how, tmp_path):
    (tmp_path / "given").mkdir()
    assert prepare(Enwik8, packed(how, tmp_path / "given")) == tmp_path / "cache" / "corpora" / "enwik8"
    assert Enwik8().read() == {split: WIKI[cut] for split, cut in CUTS.items()}


def test_an_archive_inside_an_archive_is_opened(tmp_path):
    inner = packed("tar.xz", tmp_path)
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.write(inner, "inner")
    inner.unlink()
    prepare(Enwik8, tmp_path / "outer.zip")
    assert b"".join(Enwik8().read().values()) == WIKI


def test_splits_are_told_apart_by_their_checksums(tmp_path):
    for name, split in zip("abc", SPLITS, strict=True):
        (tmp_path / name).write_bytes(WORDS[split])
    prepare(PennTreebank, tmp_path)
    assert PennTreebank().read() == WORDS


def test_where_no_checksum_is_known_the_tokens_are_counted(tmp_path):
    said = []
    prepare(WikiText103, CORPORA / "words", said.append)
    assert said == ["train.txt was known by its 25 tokens, not by a checksum"]
    shutil.copytree(CORPORA / "words", tmp_path / "words")
    (tmp_path / "words" / "train.txt").write_text("too short\n")
    assert "lacks train: wikitext-103 needs its files train (25 tokens), valid (sha256:" in refused(
        WikiText103, tmp_path / "words"
    )


@pytest.mark.parametrize(
    ("kind", "source", "complaint"),
    [
        (Enwik8, "text8", r"lacks enwik8: enwik8 needs the file enwik8 of 100 bytes \(md5:"),
        (Enwik8, "nowhere", "there is no .*nowhere"),
        (PennTreebank, "text8", r"lacks train, valid, test: .* --from FILE-OR-FOLDER"),
        (OneBillionWord, "lm1b/training-monolingual.tokenized.shuffled", "lacks news.en.heldout-00000-of-00050, news"),
        (OneBillionWord, "lm1b/heldout-monolingual.tokenized.shuffled", "lacks train .0 files with 0 lines were found"),
    ],
)
def test_what_is_not_the_corpus_is_refused_and_leaves_nothing(kind, source, complaint, tmp_path):
    assert re.search(complaint, refused(kind, CORPORA / source))
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("how", ["gz", "xz", "zip", "tar.gz", "tar.xz"])
def test_a_damaged_archive_is_said_to_be_damaged(how, tmp_path):
    path = packed(how, tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert "damaged or cut off" in refused(Enwik8, path)
    assert left_behind(tmp_path) == []


def test_an_interrupt_leaves_nothing_half_done(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("palimpsest.data.downloads.flush", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(Enwik8, CORPORA / "enwik8")
    assert left_behind(tmp_path) == []


# -------------------------------------------------------------------------------------------- downloading


@pytest.fixture
def server():
    """Serves what is put into `files`; `promised` is the length that it announces."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            raw = self.server.files.get(self.path)  # pyright: ignore[reportAttributeAccessIssue]
            self.send_response(200 if raw else 404)
            promised = self.server.promised or len(raw or b"")  # pyright: ignore[reportAttributeAccessIssue]
            self.send_header("Content-Length", str(promised))
            self.end_headers()
            self.wfile.write(raw or b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.promised = {}, None  # pyright: ignore[reportAttributeAccessIssue]
    server.address = f"http://127.0.0.1:{server.server_port}/file"  # pyright: ignore[reportAttributeAccessIssue]
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_download_is_told_as_it_goes_and_checked(server, monkeypatch, tmp_path):
    server.files["/file"] = raw = packed("tar.xz", tmp_path).read_bytes()
    monkeypatch.setattr(Enwik8, "address", server.address)
    monkeypatch.setattr(Enwik8, "packed", f"sha256:{hashlib.sha256(raw).hexdigest()}")
    told = []
    prepare(Enwik8, None, print, lambda *numbers: told.append(numbers))
    assert told[-1] == (len(raw), len(raw))
    assert b"".join(Enwik8().read().values()) == WIKI
    assert [path.name for path in left_behind(tmp_path)] == ["enwik8"]


def test_a_download_with_the_wrong_checksum_is_refused(server, monkeypatch, tmp_path):
    server.files["/file"] = b"an error page"
    monkeypatch.setattr(OneBillionWord, "address", server.address)
    assert f"is not {OneBillionWord.packed}: get it elsewhere" in refused(OneBillionWord)
    monkeypatch.setattr(Enwik8, "address", server.address)
    assert f"lacks enwik8: enwik8 needs the file enwik8 of 100 bytes ({Enwik8.checksum})" in refused(Enwik8)
    assert left_behind(tmp_path) == []


def test_a_download_that_is_cut_off_is_refused(server, monkeypatch, tmp_path):
    server.files["/file"], server.promised = b"only this", 1000
    monkeypatch.setattr(Enwik8, "address", server.address)
    complaint = refused(Enwik8)
    assert "cut off after 9 of 1,000 bytes" in complaint or "IncompleteRead" in complaint
    assert left_behind(tmp_path) == []


def test_a_dead_address_says_what_to_get_and_what_to_run(server, monkeypatch, tmp_path):
    monkeypatch.setattr(Enwik8, "address", server.address)
    complaint = refused(Enwik8)
    assert "it answers 404" in complaint
    assert f"({Enwik8.checksum}) elsewhere; then run `palimpsest data prepare enwik8 --from FILE" in complaint
    assert left_behind(tmp_path) == []


def test_no_network_is_one_line_too(tmp_path):
    with pytest.raises(Unreachable, match=r"[Rr]efused"):
        download("http://127.0.0.1:9/file", tmp_path / "file")


# -------------------------------------------------------------------------------------------- the command line


def test_the_command_prepares_once_and_lists(capsys):
    main(["data"])
    assert "palimpsest data prepare enwik8" in capsys.readouterr().out
    main(["data", "prepare", "Enwik8", "--from", str(CORPORA / "enwik8" / "enwik8")])
    main(["data", "ls", "--json"])
    shelf = json.loads(capsys.readouterr().out.split("\n", 1)[1])["enwik8"]
    assert (shelf["prepared"], shelf["size"]) == (True, "100 MB")
    assert "prepared in" in (main(["data", "ls"]), capsys.readouterr().out)[1]


def test_nothing_is_overwritten_unless_that_is_asked_for(capsys, monkeypatch, tmp_path):
    prepare(Enwik8, CORPORA / "enwik8")
    other = WIKI[::-1]
    (tmp_path / "other").write_bytes(other)
    monkeypatch.setattr(Enwik8, "checksum", f"md5:{hashlib.md5(other).hexdigest()}")
    main(["data", "prepare", "enwik8", "--from", str(tmp_path / "other")])
    assert "already prepared" in capsys.readouterr().out
    assert b"".join(Enwik8().read().values()) == WIKI
    with pytest.raises(SystemExit):
        main(["data", "prepare", "enwik8", "--force", "--from", str(CORPORA / "text8")])
    assert b"".join(Enwik8().read().values()) == WIKI
    main(["data", "prepare", "enwik8", "--force", "--from", str(tmp_path / "other")])
    assert b"".join(Enwik8().read().values()) == other
    assert [path.name for path in left_behind(tmp_path)] == ["enwik8"]


# -------------------------------------------------------------------------------------------- as the originals read


def in_form(name: str) -> Path:
    return CORPORA / "transformer_xl" / name


def test_numbers_come_back_as_the_bytes_they_stand_for():
    raw = bytes(range(256)) * 3 + b"\n\n7"
    decimals = " ".join("\n" if value == 10 else str(value) for value in raw).encode()
    assert from_decimals(decimals) == raw
    assert from_decimals(WIKI) == WIKI
    with pytest.raises(UserError, match="300, which is no byte"):
        from_decimals(b"32 300 10")


@pytest.mark.parametrize("kind", [TransformerXLEnwik8, AdaptiveSpanEnwik8])
def test_enwik8_is_the_same_from_our_folder_and_from_theirs(kind):
    prepare(Enwik8, CORPORA / "enwik8")
    assert kind().read() == kind(in_form("enwik8")).read()


@pytest.mark.parametrize("kind", [TransformerXLText8, AdaptiveSpanText8])
def test_text8_is_the_same_from_our_folder_and_from_theirs(kind):
    prepare(Text8, CORPORA / "text8")
    assert kind().read() == kind(in_form("text8")).read()


def test_transformer_xl_drops_the_newlines_of_enwik8():
    tokens = tokenise(TransformerXLEnwik8(in_form("enwik8")), TransformerXLBytes())
    for split, cut in CUTS.items():
        assert bytes(tokens.codec.values[i] for i in tokens.splits[split].ids) == WIKI[cut].replace(b"\n", b"")
        assert tokens.splits[split].bytes == tokens.splits[split].tokens
    assert tokens.codec.size == len(set(WIKI)) - 1
    assert tokens.codec.values == [value for value, _ in Counter(WIKI.replace(b"\n", b"")).most_common()]


def test_adaptive_span_ends_every_split_of_enwik8_with_a_newline():
    tokens = tokenise(AdaptiveSpanEnwik8(in_form("enwik8")), AdaptiveSpanBytes())
    assert {name: tokens.codec.decode(split.ids)[-1] for name, split in tokens.splits.items()} == dict.fromkeys(
        SPLITS, "\n"
    )
    assert tokens.codec.values == list(dict.fromkeys(WIKI[:80] + b"\n"))
    assert tokens.codec.decode(tokens.splits["train"].ids[:80]) == WIKI[:80].decode()


def test_text8_loses_the_spaces_at_the_ends_of_its_splits_and_gains_a_newline_in_adaptive_span():
    train, valid, test = (LETTERS[cut].strip() for cut in CUTS.values())
    assert list(TransformerXLText8(in_form("text8")).read().values()) == [train, valid, test]
    assert list(AdaptiveSpanText8(in_form("text8")).read().values()) == [train + b"\n", valid + b"\n", test + b"\n"]
    codec = vocabulary_from(in_form("text8"), "text8")
    assert codec.decode(codec.encode("the quince")) == "the quince"


def test_transformer_xl_validates_one_billion_word_on_its_test():
    prepare(OneBillionWord, CORPORA / "lm1b")
    splits = TransformerXLOneBillionWord().read()
    assert splits["valid"] == splits["test"] == b"Nobody ate the zebra .\n"


def test_transformer_xl_numbers_words_by_count_and_equals_as_first_seen():
    codec = TransformerXLWords().learn(b"c b a b\nb c d\n", [])
    assert codec.words == ["<eos>", "b", "c", "a", "d"]
    assert TransformerXLWords(counted="all").learn(b"c b\n", [b"c b\n", b"b e\n"]).words == ["<eos>", "b", "c", "e"]


def test_adaptive_span_numbers_words_as_seen_or_by_count_and_equals_the_last_seen_first():
    train = b"c b a b\n\nb c d"
    assert AdaptiveSpanWords().learn(train, []).words == ["c", "b", "a", "<eos>", "d"]
    assert AdaptiveSpanWords("count").learn(train, []).words == ["<eos>", "b", "c", "d", "a"]


def test_lower_case_is_the_codecs_own_affair():
    codec = TransformerXLWords(lower=True).learn(b"The THE cat\n", [])
    assert codec.words == ["<eos>", "the", "cat"]
    assert codec.encode("Cat").tolist() == [2]


def test_every_line_of_a_file_ends_and_a_prompt_does_not():
    codec = AdaptiveSpanWords().learn(b"a b\n", [])
    assert codec.decode(codec.encode_bytes(b"a\r\n\nb\rb")) == "a\n\nb\nb\n"
    assert codec.decode(codec.encode("a b")) == "a b"
    assert codec.encode_bytes(b"").size == 0


def test_a_word_that_was_not_counted_is_named_with_its_line(monkeypatch):
    codec = TransformerXLWords().learn(b"a b\n", [])
    monkeypatch.setattr("palimpsest.data.codec.passages.__defaults__", (1,))
    with pytest.raises(UserError, match=r"no 'zebra' \(line 3\); it knows 3 words"):
        codec.encode_bytes(b"a\nb\na zebra\n")
    with pytest.raises(UserError, match=r"no 'zebra' \(line 1\)"):
        codec.encode("a zebra")
    bytes_only = TransformerXLBytes().learn(b"", [b"ab"])
    with pytest.raises(UserError, match=r"no byte b'\\n' \(at offset 1, line 1\); it knows 2"):
        bytes_only.encode_bytes(b"a\nb")


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_bytes_are_counted_as_a_counter_counts_them(size):
    raw = np.random.default_rng(0).integers(0, 200, size, np.uint8).tobytes()
    assert list(count_bytes([raw, b"xy"]).items()) == list(Counter(raw + b"xy").items())


def test_sentences_stand_between_two_marks_and_strangers_are_unknown():
    codec = vocabulary_from(CORPORA / "lm1b", "lm1b")
    path = next((CORPORA / "lm1b").rglob("news.en.heldout-00000*"))
    marked = [["<S>", "Nobody", "ate", "the", "<UNK>", ".", "<S>"]]
    assert [[codec.words[i] for i in sentence] for sentence in sentences(path, codec)] == marked
    ids = codec.encode_bytes(b"The jam .\n\nThe quince .")
    assert "".join(codec.words[i] for i in ids) == "<S>Thejam.<S><S><S><S>Thequince.<S>"
    assert codec.decode(codec.encode("The jam .\nThe quince .\nNobody")) == "The jam .\nThe quince .\nNobody"
    assert codec.encode("Nobody").tolist() == [0, codec.words.index("Nobody")]


LEGACY = [
    *TRANSFORMER_XL.values(),
    *ADAPTIVE_SPAN.values(),
    *ADAPTIVE_SPAN_SORTED.values(),
]


@pytest.mark.parametrize("reading", LEGACY, ids=repr)
def test_a_legacy_reading_survives_json(reading):
    for spec in reading:
        assert from_json(json.loads(json.dumps(to_json(spec))), type(spec)) == spec


@pytest.mark.parametrize("dataset", ["wt103", "wt2", "ptb", "enwik8", "text8", "lm1b"])
def test_the_tokens_of_a_model_come_from_its_data_folder_and_survive_json(dataset):
    folder = {"enwik8": in_form("enwik8"), "text8": in_form("text8"), "lm1b": CORPORA / "lm1b"}
    codec = vocabulary_from(folder.get(dataset, CORPORA / "words"), dataset)
    restored = codec_from_json(json.loads(json.dumps(codec.to_json())))
    assert restored == codec
    text = codec.decode(range(codec.size)).replace("\ufffd", "")
    assert np.array_equal(restored.encode(text), codec.encode(text))
    assert codec.encode(text).max() < codec.size


@pytest.mark.parametrize("original", [ADAPTIVE_SPAN, ADAPTIVE_SPAN_SORTED])
def test_adaptive_span_reads_its_folders_too(original):
    second = "=" if original is ADAPTIVE_SPAN else "is"
    assert vocabulary_from(CORPORA / "words", "wikitext-103", original).words[:2] == ["<eos>", second]
    assert vocabulary_from(in_form("enwik8"), "enwik8", original).size == len(set(WIKI[:80]))


def test_a_data_folder_that_lacks_a_file_is_told_which(tmp_path):
    with pytest.raises(UserError, match=r"has no train\.txt: the vocabulary of wikitext-103 is counted"):
        vocabulary_from(tmp_path, "wt103")
    (tmp_path / "train.txt").write_text("a\n")
    assert vocabulary_from(tmp_path, "wt103").words == ["<eos>", "a"]
    with pytest.raises(UserError, match=r"has no valid\.txt, test\.txt"):
        vocabulary_from(tmp_path, "wt2")
    with pytest.raises(UserError, match=r"there is no .*1b_word_vocab\.txt"):
        vocabulary_from(tmp_path, "lm1b")
    with pytest.raises(UserError, match=r"unknown dataset 'wt3'; did you mean wt"):
        vocabulary_from(tmp_path, "wt3")


def test_another_list_of_words_is_another_vocabulary(tmp_path):
    prepare(OneBillionWord, CORPORA / "lm1b")
    path = OneBillionWord.prepared() / OneBillionWord.vocabulary_file
    before = tokenise(TransformerXLOneBillionWord(), TransformerXLWordList())
    assert before.codec.size == 12
    path.write_text(path.read_text() + "zebra 1\n")
    after = tokenise(TransformerXLOneBillionWord(), TransformerXLWordList())
    assert after.codec.decode(after.splits["test"].ids) == "Nobody ate the zebra .\n"


def test_a_list_of_words_without_its_marks_is_refused(tmp_path):
    (tmp_path / "list").write_text("a 1\n\nb 2\n")
    with pytest.raises(UserError, match="has no line for <S>"):
        TransformerXLWordList(tmp_path / "list").learn(b"", [])
