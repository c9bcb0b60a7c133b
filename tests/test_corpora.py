import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.data.corpora import Corpus, JsonLines, Text, TinyShakespeare, character_start
from palimpsest.data.tokens import tokenise
from palimpsest.data.vocabulary import Bytes, Characters, SubWords, Words
from palimpsest.errors import UserError

SONNET = "Shall I compare thee to a summer's day?\nThou art more lovély and more temperate:\n" * 20
relaxed = settings(deadline=None, max_examples=50, derandomize=True)


@pytest.fixture
def sonnet(tmp_path):
    path = tmp_path / "sonnet.txt"
    path.write_text(SONNET, "utf-8")
    return Text(path)


def write(folder: Path, **files: str) -> Text:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return Text(folder)


def test_tiny_shakespeare_is_whole():
    splits = TinyShakespeare().read()
    whole = b"".join(splits.values())
    assert list(splits) == ["train", "valid"]
    assert (len(whole), len(splits["train"])) == (1_115_394, 1_003_854)
    assert hashlib.sha256(whole).hexdigest() == "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@pytest.mark.parametrize("corpus", Corpus.variants())
def test_every_corpus_says_what_it_is(corpus):
    assert corpus.summary()


def test_a_corpus_has_a_name(sonnet, tmp_path):
    assert [corpus.name for corpus in (TinyShakespeare(), sonnet)] == ["tiny-shakespeare", "sonnet"]
    assert Text(tmp_path).name == tmp_path.name


@relaxed
@given(raw=st.binary(min_size=1), valid=st.floats(0, 0.49), test=st.floats(0, 0.49))
def test_cutting_loses_nothing(tmp_path_factory, raw, valid, test):
    path = tmp_path_factory.getbasetemp() / "raw.bin"
    path.write_bytes(raw)
    splits = Text(path, valid, test).read()
    assert b"".join(splits.values()) == raw
    assert all(splits.values())


@relaxed
@given(text=st.text(min_size=1), share=st.floats(0, 1))
def test_no_character_is_cut_in_two(text, share):
    raw = text.encode()
    cut = character_start(raw, int(share * len(raw)))
    assert raw[:cut].decode() + raw[cut:].decode() == text


def test_the_shares_are_exact():
    assert [len(part) for part in Text(Path("x"))._cut(Path("x"), b"a" * 10**6).values()] == [900_000, 50_000, 50_000]


@pytest.mark.parametrize("names", [("train.txt", "valid.txt", "test.txt"), ("w.train.tokens", "w-val.tokens", "test")])
def test_a_folder_may_hold_its_own_splits(tmp_path, names):
    for name in (*names, "README.md", "latest.txt"):
        (tmp_path / name).write_text(name)
    splits = Text(tmp_path).read()
    assert list(splits) == ["train", "valid", "test"]
    assert list(splits.values()) == [name.encode() for name in names]


def test_other_folders_are_joined_in_the_order_of_their_paths_and_cut(tmp_path):
    corpus = write(tmp_path, b_txt="second\n", a__z_md="first", c_png="not text", _git__config="hidden")
    assert b"".join(corpus.read().values()) == b"first\nsecond\n"


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, book_txt=SONNET)
    assert b"".join(Text(Path("~/book.txt")).read().values()) == SONNET.encode()


def test_a_misspelt_path_gets_a_suggestion(sonnet):
    with pytest.raises(UserError, match=r"did you mean .*sonnet\.txt\?"):
        Text(sonnet.path.with_name("sonet.txt")).read()


@pytest.mark.parametrize(
    ("path", "complaint"),
    [("empty.txt", "is empty"), ("folder", "no text files"), ("no/such", "not even a folder"), ("zzz", "no .*zzz")],
)
def test_where_there_is_no_text_the_reason_is_given(tmp_path, path, complaint):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=complaint):
        Text(tmp_path / path).read()


def test_a_text_without_a_path_does_not_read_the_current_folder():
    with pytest.raises(UserError, match="no path"):
        Text().read()


@pytest.mark.parametrize(("valid", "test"), [(-0.1, 0), (0, 1.5), (0.5, 0.5), (float("nan"), 0)])
def test_shares_out_of_range_are_refused(valid, test):
    with pytest.raises(UserError, match="below 1"):
        Text(Path("x"), valid, test)


@pytest.mark.parametrize("vocabulary", [Bytes, Characters, SubWords, Words])
def test_tokens_are_the_same_from_the_text_and_from_the_cache(vocabulary, sonnet, tmp_path):
    first, second = (tokenise(sonnet, vocabulary(), cache=tmp_path / "cache") for _ in range(2))
    assert first.codec == second.codec
    for name, raw in sonnet.read().items():
        split = second.splits[name]
        assert np.array_equal(split.ids, first.codec.encode_bytes(raw))
        assert np.array_equal(split.ids, first.splits[name].ids)
        assert (split.bytes, split.characters, split.tokens) == (len(raw), len(raw.decode()), len(split.ids))
        assert isinstance(split.ids, np.memmap)


@pytest.mark.parametrize(("size", "dtype"), [(256, "u1"), (257, "u2"), (2**16, "u2"), (2**16 + 1, "u4")])
def test_tokens_are_as_small_as_the_vocabulary_allows(size, dtype, tmp_path):
    corpus = write(tmp_path, book_txt="".join(map(chr, range(0x10000, 0x10000 + size))))
    assert tokenise(corpus, Characters(), cache=tmp_path / "cache").splits["train"].ids.dtype == dtype


def test_a_split_may_have_no_tokens(tmp_path):
    corpus = write(tmp_path, train_txt="a b\n", valid_txt="   ")
    assert [tokenise(corpus, Words(), cache=tmp_path / "cache").splits["valid"].tokens for _ in range(2)] == [0, 0]


def test_bytes_that_are_not_text_have_no_characters(tmp_path):
    (tmp_path / "raw.bin").write_bytes(b"\xff" * 100)
    split = tokenise(Text(tmp_path / "raw.bin"), Bytes(), cache=tmp_path / "cache").splits["train"]
    assert (split.characters, split.bytes) == (None, 90)


def test_a_given_codec_is_used_and_nothing_is_learned(sonnet, tmp_path):
    codec = Words(size=5).learn(SONNET.encode(), [])
    only_test = write(tmp_path / "only", test_txt=SONNET)
    tokens = tokenise(only_test, Bytes(), codec, tmp_path / "cache")
    assert tokens.codec == codec
    assert np.array_equal(tokens.splits["test"].ids, codec.encode(SONNET))
    with pytest.raises(UserError, match="no train split"):
        tokenise(only_test, Words(), cache=tmp_path / "cache")


def test_other_texts_and_vocabularies_do_not_share_entries(sonnet, tmp_path):
    other = write(tmp_path / "other", book_txt=SONNET + "more")
    cache = tmp_path / "cache"
    for corpus, vocabulary in [(sonnet, Words()), (sonnet, Words(size=9)), (sonnet, SubWords(300)), (other, Words())]:
        expected = vocabulary.learn(corpus.read()["train"], [])
        assert tokenise(corpus, vocabulary, cache=cache).codec == expected
    assert len(list(cache.glob("*.json"))) == 4


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


def shrink(path: Path) -> None:
    path.write_text(json.dumps({"dtype": "<u2"}) if path.suffix == ".json" else "")


@pytest.mark.parametrize("kind", ["*.bin", "*.json"])
@pytest.mark.parametrize("harm", [truncate, flip, shrink])
def test_a_damaged_entry_is_built_again_with_one_line(sonnet, tmp_path, kind, harm):
    said: list[str] = []
    whole = tokenise(sonnet, SubWords(300), cache=tmp_path / "c", notice=said.append).splits["train"].ids.tolist()
    for path in (tmp_path / "c").glob(kind):
        harm(path)
    for _ in range(2):
        again = tokenise(sonnet, SubWords(300), cache=tmp_path / "c", notice=said.append)
        assert again.splits["train"].ids.tolist() == whole
    assert len(said) == 1
    assert "built again" in said[0]


def test_a_missing_token_file_is_built_again_with_one_line(sonnet, tmp_path):
    tokenise(sonnet, Bytes(), cache=tmp_path / "c")
    next((tmp_path / "c").glob("*.bin")).unlink()
    said: list[str] = []
    assert tokenise(sonnet, Bytes(), cache=tmp_path / "c", notice=said.append).splits["train"].tokens
    assert len(said) == 1


def test_a_cache_that_cannot_be_written_leaves_the_tokens_in_memory(sonnet):
    said: list[str] = []
    tokens = tokenise(sonnet, Characters(), cache=sonnet.path / "cache", notice=said.append)
    assert tokens.codec.decode(tokens.splits["train"].ids) == sonnet.read()["train"].decode()
    assert len(said) == 1
    assert "memory" in said[0]


def test_many_may_build_the_same_entry_at_once(sonnet, tmp_path):
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda _: tokenise(sonnet, Words(), cache=tmp_path / "c"), range(16)))
    assert all(np.array_equal(tokens.splits["train"].ids, built[0].splits["train"].ids) for tokens in built)
    assert {path.suffix for path in (tmp_path / "c").iterdir()} == {".bin", ".json"}


def test_the_environment_may_name_the_cache(sonnet, tmp_path, monkeypatch):
    monkeypatch.setenv("PALIMPSEST_CACHE", str(tmp_path / "chosen"))
    tokenise(sonnet, Bytes())
    assert list((tmp_path / "chosen" / "tokens").glob("*.json"))


# ------------------------------------------------------------------------------------------------- documents


def documents_of(split, codec):
    return [codec.decode(split.ids[first:last]) for first, last in pairwise(split.documents)]


@pytest.mark.parametrize("vocabulary", (Bytes, Characters, Words, lambda: SubWords(300)))
def test_documents_are_encoded_one_by_one_and_stored_with_their_borders(tmp_path, vocabulary):
    text = "".join(f"{SONNET[: 40 + 7 * i]}\n\n" for i in range(20)) + "the last one does not end"
    (tmp_path / "many.txt").write_text(text, "utf-8")
    corpus = Text(tmp_path / "many.txt", valid=0.0, test=0.0, documents="\n\n")
    first, second = (tokenise(corpus, vocabulary(), cache=tmp_path / "cache") for _ in range(2))
    split = second.splits["train"]
    assert np.array_equal(split.documents, first.splits["train"].documents)
    assert isinstance(split.documents, np.memmap)
    assert len(split.documents) == 22
    assert split.documents[-1] == split.tokens
    assert split.targets == split.tokens - 21
    if vocabulary in (Bytes, Characters):
        assert "".join(documents_of(split, second.codec)) == text
    whole = tokenise(Text(corpus.path, valid=0.0, test=0.0), vocabulary(), cache=tmp_path / "cache").splits["train"]
    assert whole.documents is None


@relaxed
@given(lengths=st.lists(st.integers(0, 5), min_size=1), valid=st.floats(0, 0.49), test=st.floats(0, 0.49))
def test_no_document_is_cut_between_splits(tmp_path_factory, lengths, valid, test):
    path = tmp_path_factory.getbasetemp() / "documents.txt"
    path.write_text("".join("é" * length + "\n\n" for length in lengths), "utf-8")
    splits = Text(path, valid, test, documents="\n\n").read()
    assert b"".join(splits.values()) == path.read_bytes()
    assert all(raw.endswith(b"\n\n") for raw in splits.values())


@pytest.mark.parametrize("corpus", [one for one in Corpus.variants() if "documents" in one.__dataclass_fields__])
def test_documents_that_end_with_nothing_are_refused_by_every_corpus(corpus):
    with pytest.raises(UserError, match="documents cannot end with nothing"):
        corpus(documents="")


def test_json_lines_are_documents(tmp_path):
    path = tmp_path / "docs.jsonl"
    path.write_text("\n".join(json.dumps({"body": f"number {i}\nis é"}) for i in range(40)) + "\n\n", "utf-8")
    tokens = tokenise(JsonLines(path, field="body"), Characters(), cache=tmp_path / "cache")
    found = [one for split in tokens.splits.values() for one in documents_of(split, tokens.codec)]
    assert found == [f"number {i}\nis é\n\x03" for i in range(40)]
    assert list(tokens.splits) == ["train", "valid", "test"]


@pytest.mark.parametrize("line", ['{"text": 3}', "[1]", "not JSON", '{"other": "text"}'])
def test_a_line_without_a_text_is_named(tmp_path, line):
    (tmp_path / "docs.jsonl").write_text('{"text": "fine"}\n' + line)
    with pytest.raises(UserError, match=r"line 2 of .*docs.jsonl is no JSON object with a text 'text'"):
        JsonLines(tmp_path / "docs.jsonl").read()


def test_a_folder_of_json_lines_may_have_splits_of_its_own(tmp_path):
    for split in ("train", "valid"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"text": split}))
    (tmp_path / "README.md").write_text("not read")
    assert JsonLines(tmp_path).read() == {"train": b"train\n\x03", "valid": b"valid\n\x03"}
    with pytest.raises(UserError, match=r"no text files in .* \(looked for .ndjson and .jsonl\)"):
        JsonLines(write(tmp_path / "other", a_txt="text").path).read()
