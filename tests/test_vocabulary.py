import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palimpsest.data.codec import characters_begun
from palimpsest.data.vocabulary import (
    Bytes,
    Characters,
    PunctuatedWords,
    SubWords,
    Vocabulary,
    Words,
    codec_from_json,
)
from palimpsest.errors import UserError

TRAIN = "To be, or not to be, that is the question:\nWhether 'tis nobler in the mind to suffer\n" * 3
OURS = [each for each in Vocabulary.variants() if each.__module__ == Vocabulary.__module__]  # not the legacy ones
LOSSLESS = [variant for variant in OURS if not issubclass(variant, Words)]
AWKWARD = ["", "\n", " \n\n  a ", "\r\n\t", "▁ ▁▁\n▁", "naïve 😀\0", "<0x0A><unk> <eos>", "\u2028x\x85", "ﬁ\u0301Å"]

every_vocabulary = pytest.mark.parametrize("vocabulary", OURS)
texts = st.one_of(st.text(), st.sampled_from(AWKWARD), st.text(alphabet="to be\n▁é"))
relaxed = settings(deadline=None, max_examples=40, derandomize=True)


def learned(vocabulary, *others):
    return vocabulary().learn(TRAIN.encode(), [TRAIN.encode(), *(other.encode() for other in others)])


@pytest.mark.parametrize("vocabulary", LOSSLESS)
@relaxed
@given(text=texts)
def test_the_whole_text_comes_back(vocabulary, text):
    codec = learned(vocabulary, text)
    assert codec.decode(codec.encode(text)) == text


@pytest.mark.parametrize("vocabulary", LOSSLESS)
@relaxed
@given(text=texts)
def test_tokens_one_by_one_spell_all_bytes_and_characters_of_the_text(vocabulary, text):
    codec = learned(vocabulary, text)
    spelt = [codec.spelling([token]) for token in codec.encode(text)]
    assert b"".join(spelt) == text.encode()
    assert sum(map(characters_begun, spelt)) == len(text)


@every_vocabulary
@relaxed
@given(text=texts)
def test_reading_what_was_written_gives_the_same_tokens(vocabulary, text):
    codec = learned(vocabulary, text)
    ids = codec.encode(text)
    assert ids.dtype == np.int64
    assert np.array_equal(codec.encode(codec.decode(ids)), ids)
    assert np.array_equal(codec.encode_bytes(text.encode()), ids)


@every_vocabulary
@relaxed
@given(data=st.data())
def test_printing_token_by_token_gives_the_text(vocabulary, data):
    codec = learned(vocabulary, "naïve 😀")
    ids = data.draw(st.lists(st.integers(0, codec.size - 1), max_size=40))
    printer = codec.stream()
    assert "".join(printer(token) for token in ids) + printer.close() == codec.decode(ids)


@every_vocabulary
def test_what_is_printed_after_a_text_goes_on_where_it_ends(vocabulary):
    codec = learned(vocabulary, "é")
    text = codec.decode(codec.encode("To be, or né\n\nto be,\nthat is"))
    ids = codec.encode(text).tolist()
    for cut in range(len(text) + 1):
        before, after = (codec.encode(part).tolist() for part in (text[:cut], text[cut:]))
        if before + after == ids:  # otherwise it would be cut within a token
            printer = codec.stream(before=text[:cut])
            assert "".join(map(printer, after)) + printer.close() == text[cut:]


def test_a_character_is_printed_once_it_is_whole():
    codec = learned(Bytes)
    printer = codec.stream()
    assert [printer(token) for token in codec.encode("é!")] == ["", "é", "!"]
    assert (printer(0xC3), printer.close()) == ("", "\ufffd")


@every_vocabulary
def test_json_keeps_the_codec(vocabulary):
    codec = learned(vocabulary)
    restored = codec_from_json(json.loads(json.dumps(codec.to_json())))
    assert restored == codec
    assert (restored.size, restored.unit) == (codec.size, codec.unit)
    assert np.array_equal(restored.encode(TRAIN), codec.encode(TRAIN))


@every_vocabulary
def test_every_token_is_below_the_size(vocabulary):
    codec = learned(vocabulary)
    assert codec.encode(TRAIN).max() < codec.size
    assert codec.decode(range(codec.size))


@every_vocabulary
def test_learning_again_learns_the_same(vocabulary):
    assert learned(vocabulary) == learned(vocabulary)


@every_vocabulary
def test_every_vocabulary_says_what_it_is(vocabulary):
    assert vocabulary.summary()


@pytest.mark.parametrize("vocabulary", [Characters, Words, SubWords])
def test_text_that_is_not_utf8_is_refused_with_its_place(vocabulary):
    with pytest.raises(UserError, match=r"0xff at offset 3.*--vocabulary Bytes"):
        vocabulary().learn(b"abc\xff", [b"abc\xff"])


def test_bytes_read_anything():
    raw = bytes(range(256))
    assert learned(Bytes).encode_bytes(raw).tolist() == list(raw)
    assert "\ufffd" in learned(Bytes).decode(raw)


def test_bytes_that_the_shell_could_not_decode_are_still_bytes():
    assert learned(Bytes).encode("a\udcff").tolist() == [97, 255]


def test_an_alphabet_is_learned_from_every_split():
    assert learned(Characters, "é").size == len(set(TRAIN)) + 1


@pytest.mark.parametrize("vocabulary", [Words, SubWords])
def test_statistics_are_learned_from_train_alone(vocabulary):
    assert learned(vocabulary, "zebra " * 100) == learned(vocabulary)


def test_a_character_outside_the_alphabet_is_named():
    complaint = r"no 'é' \(U\+00E9, at character 4\); it knows 2 characters.*--vocabulary Bytes"
    with pytest.raises(UserError, match=complaint):
        Characters().learn(b"", [b"ab"]).encode("abaéz")


def test_words_come_most_frequent_first_and_ties_in_order_of_appearance():
    codec = Words().learn(b"c b a b\nb c\n", [])
    assert codec.words == ["b", "c", "<eos>", "a", "<unk>"]


def test_a_newline_is_one_end_of_sentence():
    codec = learned(Words)
    assert codec.decode(codec.encode("  not to\n\nmind  the\n")) == "not to\n\nmind the\n"
    assert (codec.encode(TRAIN) == codec.words.index("<eos>")).sum() == TRAIN.count("\n")


def test_rare_words_are_cut_and_read_as_unknown():
    codec = Words(minimum_count=2).learn(b"a a a b b c d e f\n", [])
    assert codec.words == ["<unk>", "a", "b", "<eos>"]
    assert codec.decode(codec.encode("b c zebra")) == "b <unk> <unk>"


@pytest.mark.parametrize("size", [2, 3, 5, 100])
def test_words_keep_to_their_size(size):
    codec = Words(size=size).learn(TRAIN.encode(), [])
    assert codec.size == min(size, Words().learn(TRAIN.encode(), []).size)
    assert {"<unk>", "<eos>"} <= set(codec.words)


def test_punctuation_marks_are_words_of_their_own_and_marked_inside_a_word():
    text = '= Nile =\n\nIt\'s 6,853 km (about 4,258 miles) "well-known"... <unk> @-@ m.\n'
    codec = PunctuatedWords().learn(text.encode(), [])
    apart = 'It @\'@ s 6 @,@ 853 km ( about 4 @,@ 258 miles ) " well @-@ known " . . . <unk> @-@ m .'
    assert codec.decode(codec.encode(text)) == f"= Nile =\n\n{apart}\n"
    assert (
        codec_from_json(json.loads(json.dumps(codec.to_json()))).decode(codec.encode("a-m, m")) == "<unk> @-@ m <unk> m"
    )


def test_sub_words_of_a_small_text_are_fewer_and_silent(capfd):
    codec = SubWords(size=30_000).learn(b"hello hello", [])
    assert 256 < codec.size < 300
    assert codec.decode(codec.encode("hello\nworld")) == "hello\nworld"
    assert capfd.readouterr() == ("", "")


def test_sub_words_learn_from_lines_of_any_length():
    line = " ".join(["palimpsest"] * 2000)
    assert len(SubWords(300).learn(line.encode(), []).encode("palimpsest palimpsest")) <= 4


@pytest.mark.parametrize(("size", "text", "complaint"), [(10, b"abc", "size of 2.. or more"), (500, b"\r\n", "empty")])
def test_sub_words_that_cannot_be_learned_are_refused_in_one_line(size, text, complaint, capfd):
    with pytest.raises(UserError, match=complaint):
        SubWords(size).learn(text, [])
    assert capfd.readouterr() == ("", "")


def test_missing_sentencepiece_is_one_line_that_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=r"pip install palimpsest\[subwords\]"):
        learned(SubWords)
