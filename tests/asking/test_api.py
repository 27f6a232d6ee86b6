"""Asking: search, fit, prompt, generate; with the embedded model, and with random ones and a template."""

import json
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relevance_gen import (
    AnswerStream,
    ChunkIndex,
    Encoder,
    InvalidRequestError,
    ModelLoadError,
    RequestCancelledError,
    Runner,
    TextPiece,
    ask,
    ask_stream,
    search,
)
from relevance_gen.asking.answer import NO_ANSWER_FOUND, NOTHING_FOUND
from relevance_gen.text.chunking import sentences
from relevance_gen.wire import serialize
from small_models import BIGRAM, ENCODER, STORY, TINY
from tests.profiles import costly
from tests.retrieval.test_cross_encoder import HashReranker

CHUNKS = [
    "The lighthouse was built in 1831 by a family of masons. Its lamp burned whale oil.",
    {
        "text": "Bees tell each other where the flowers are by dancing. The treaty was signed.",
        "metadata": {"page": 3},
    },
    "The ferry to the island leaves at seven in the morning.",
]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<model>{{ enable_thinking }}z"
)


@pytest.fixture(scope="module")
def embedded():
    with Runner(n_slots=1) as runner:
        yield runner


@pytest.fixture(scope="module")
def bigram():
    """A model that writes the story after the letter z, and has no chat template."""
    with Runner(BIGRAM, n_slots=2, n_ctx=1024, n_threads=1) as runner:
        yield runner


def test_the_embedded_model_copies_the_sentence_asked_for(embedded):
    """Without a template the best passages are its context; it ends by itself, and says from where it has it."""
    answer = ask("How do bees find flowers?", CHUNKS, runner=embedded, top_n=2)
    assert answer.text == "Bees tell each other where the flowers are by dancing."
    assert answer.finish_reason == "eos"
    best = answer.sources[0]
    assert (best.result.original_index, best.result.metadata) == (1, {"page": 3})
    assert best.text == "Bees tell each other where the flowers are by dancing."
    assert answer.prompt == f"Context: {best.text}\nQuestion: How do bees find flowers?\nAnswer:"


def test_a_long_passage_is_shown_alone(embedded):
    """Further passages have to be short, the best has all the context has room for."""
    long = "The ferry " + "and the very old boat of the harbour " * 12 + "leave at seven."
    answer = ask(
        "When does the very old boat of the harbour leave?", [long, "The harbour."], runner=embedded
    )
    assert [source.text for source in answer.sources] == [long]
    assert answer.response.prompt_tokens > 128


def test_an_index_is_asked_as_a_list_is(embedded):
    """`ChunkIndex` and a list of chunks give the same answer; `where` keeps sources out of both."""
    question = "When does the ferry leave, and who built the lighthouse?"
    for options in ({}, {"where": [2]}, {"top_n": 1}):
        one = ask(question, CHUNKS, runner=embedded, **options)
        other = ask(question, ChunkIndex(CHUNKS), runner=embedded, **options)
        assert (one.text, one.sources, one.prompt) == (other.text, other.sources, other.prompt)
    assert {
        source.result.original_index
        for source in ask(question, CHUNKS, runner=embedded, where=[2]).sources
    } == {2}


def test_an_encoder_chooses_what_is_shown(embedded):
    """Sources are those that a search with the encoder finds, in its order and with its scores."""
    question = "Who built the lighthouse?"
    with Encoder(ENCODER) as encoder:
        answer = ask(question, CHUNKS, runner=embedded, encoder=encoder, top_n=1)
        (found,) = search(question, CHUNKS, 1, spans=True, encoder=encoder)
    assert [source.result for source in answer.sources] == [found]
    assert found.chunk_score > search(question, CHUNKS, 1)[0].chunk_score


def test_a_reranker_chooses_what_is_shown(embedded):
    """The source is the chunk that it finds most relevant, and the confidence is that of the words."""
    question = "When does the ferry leave, and who built the lighthouse?"
    words = search(question, CHUNKS)
    last = words.best[-1].chunk_txt
    told = {result.chunk_txt: 0.5 for result in words} | {last: 0.75}
    answer = ask(question, CHUNKS, runner=embedded, reranker=HashReranker(told), top_n=1)
    assert len(words) > 1
    assert [(source.result.chunk_txt, source.result.chunk_score) for source in answer.sources] == [
        (last, 0.75)
    ]
    assert answer.confidence == words.confidence


def test_where_nothing_is_found_no_model_is_asked(bigram):
    """The answer says so, without sources; a model is asked only by a caller who wants that."""
    for answer in (
        ask("zebra?", CHUNKS, runner=bigram),
        ask_stream("zebra?", CHUNKS, runner=bigram).result(),
    ):
        assert (answer.text, answer.sources, answer.prompt, answer.response) == (
            NOTHING_FOUND,
            (),
            "",
            None,
        )
        assert (answer.confidence, answer.finish_reason) == (0.0, None)
    assert list(ask_stream("zebra?", CHUNKS, runner=bigram)) == [NOTHING_FOUND]
    invented = ask(
        "zebra?",
        CHUNKS,
        runner=bigram,
        chat_template=TEMPLATE,
        only_from_sources=False,
        max_tokens=12,
    )
    assert (invented.text, invented.sources) == (STORY.strip(), ())


def test_no_model_is_loaded_where_nothing_is_found(monkeypatch):
    """Not even one that could not be."""
    monkeypatch.setattr(
        "relevance_gen.generation.api._default_runner", None
    )  # another test may have loaded one
    monkeypatch.setenv("RELEVANCE_GEN_MODEL", "/no/such/model.gguf")
    assert ask("zebra?", CHUNKS).text == NOTHING_FOUND


def test_no_model_is_asked_where_the_search_is_not_sure(monkeypatch):
    """Below the bound the text says so, the nearest passages are the sources, and no model is loaded."""
    monkeypatch.setattr(
        "relevance_gen.generation.api._default_runner", None
    )  # another test may have loaded one
    monkeypatch.setenv("RELEVANCE_GEN_MODEL", "/no/such/model.gguf")
    question = "What is the capital of France?"
    answer = ask(question, CHUNKS)
    assert (answer.text, answer.found, answer.response) == (NO_ANSWER_FOUND, False, None)
    assert answer.sources[0].result == search(question, CHUNKS, 1, spans=True, true_order=False)[0]
    assert answer.to_dict()["found"] is False
    assert not ask("Who built the lighthouse?", CHUNKS, min_confidence=1).found
    with pytest.raises(ModelLoadError):
        ask(question, CHUNKS, min_confidence=0)
    with pytest.raises(ModelLoadError):
        ask(question, CHUNKS, only_from_sources=False)


words = st.sampled_from(
    "the keeper рыба 灯塔。 ไฟ b\u0301 “said” 1831. e.g. 🙂! x? \u3000 \n \ufffd".split(" ")
)
some_texts = st.lists(
    st.lists(words, min_size=1, max_size=30).map(" ".join), min_size=1, max_size=3
)


@costly
@given(chunks=some_texts, question=st.lists(words, min_size=1, max_size=4).map(" ".join))
def test_an_answer_of_the_embedded_model_is_text_of_its_source(embedded, chunks, question):
    """Word for word, in any script, to the end of a sentence; and streamed it says the same."""
    assume(any(chunk.strip() for chunk in chunks) and question.strip())
    answer = ask(
        question, [chunk for chunk in chunks if chunk.strip()], runner=embedded, min_confidence=0
    )
    if answer.found:
        assert answer.finish_reason == "eos"
        assert answer.text == answer.sources[0].reference
        assert answer.text in " ".join(answer.sources[0].result.chunk_txt.split())


def test_it_answers_in_the_words_of_any_language(embedded):
    """What the passage's sentences say, though the model has learnt no word of it; freely it says something else."""
    chunks = [
        "Маяк построен в 1831 году. Он белый.",
        "灯塔建于1831年。它是白色的。",
        "It is white.",
    ]
    for question, said in (
        ("Когда построен маяк?", "Маяк построен в 1831 году."),
        ("灯塔建于哪一年", "灯塔建于1831年。"),
    ):
        assert ask(question, chunks, runner=embedded).text == said
        assert ask(question, chunks, runner=embedded, copy=False).text != said


def test_a_copy_has_what_a_request_has(embedded):
    """Stop strings and max_tokens cut it, tokens and log probabilities come with it."""
    whole = ask(
        "How do bees find flowers?", CHUNKS, runner=embedded, logprobs=True, return_tokens=True
    )
    sample = whole.response.responses[0]
    assert len(sample.logprobs) == len(sample.tokens) == sample.generated_tokens
    assert (
        ask("How do bees find flowers?", CHUNKS, runner=embedded, stop=[" where"]).text
        == "Bees tell each other"
    )
    cut = ask("How do bees find flowers?", CHUNKS, runner=embedded, max_tokens=3)
    assert (cut.finish_reason, whole.text.startswith(cut.text)) == ("length", True)
    with ask_stream("How do bees find flowers?", CHUNKS, runner=embedded) as stream:
        assert "".join(stream) == whole.text


def test_a_chat_model_copies_a_sentence_of_any_source(embedded):
    """Asked for by `copy`: whatever it would like to say, it says one of the sentences that it was shown."""
    question = "the lighthouse, a treaty, the ferry and whale oil?"
    answer = ask(question, CHUNKS, runner=embedded, chat_template=TEMPLATE, copy=True, top_n=3)
    shown = [
        source.text[start:end] for source in answer.sources for start, end in sentences(source.text)
    ]
    assert len(shown) == 5
    assert answer.text in shown
    assert "word for word" in answer.prompt
    assert (
        ask(question, CHUNKS, runner=embedded, chat_template=TEMPLATE, max_tokens=9).text
        not in shown
    )


def test_a_form_of_its_own_goes_before_the_files_word(embedded):
    """A request with a form is not copied, unless `copy` says so, which is refused."""
    assert ask("How do bees find flowers?", CHUNKS, runner=embedded, choice=[" No."]).text == "No."
    with pytest.raises(InvalidRequestError, match="copy cannot be combined with choice"):
        ask("How do bees find flowers?", CHUNKS, runner=embedded, choice=[" No."], copy=True)


def test_a_chat_model_gets_numbered_sources(bigram):
    """With a template the prompt is what it writes of one message: whole chunks, best first, without thinking."""
    answer = ask(
        "the lighthouse or a treaty?", CHUNKS, runner=bigram, chat_template=TEMPLATE, max_tokens=12
    )
    assert answer.text == STORY.strip()
    assert [source.text for source in answer.sources] == [CHUNKS[0], CHUNKS[1]["text"], CHUNKS[2]][
        : len(answer.sources)
    ]
    assert answer.prompt.startswith("<user>Answer the question")
    assert f"\n\n[1] {CHUNKS[0]}\n\n[2] " in answer.prompt
    assert answer.prompt.endswith("\n\nQuestion: the lighthouse or a treaty?<model>Falsez")


def test_options_reach_prompt_and_generation(bigram):
    """Instructions, template variables and fields of a request are the caller's."""
    options = {
        "instructions": "Sing.",
        "template_variables": {"enable_thinking": True},
        "stop": ["caf"],
    }
    answer = ask("treaty?", CHUNKS, runner=bigram, chat_template=TEMPLATE, **options)
    assert answer.prompt.startswith("<user>Sing.\n\n[1] Bees")
    assert answer.prompt.endswith("<model>Truez")
    assert (answer.text, answer.finish_reason) == ("Once upon a", "stop")


@pytest.mark.parametrize("n_ctx", [512, 768, 2048])
def test_what_is_shown_leaves_room_for_the_answer(n_ctx):
    """By the tokens of the model: prompt and longest answer fit the context, and a cut chunk is its best sentences."""
    long = (
        "Some words stand here. " * 20
        + "The ferry leaves at seven. "
        + "Other words stand there. " * 20
    )
    with Runner(TINY, n_slots=1, n_ctx=n_ctx, n_threads=1) as runner:
        options = {"chat_template": TEMPLATE, "instructions": "-", "max_tokens": 100}
        answer = ask("When does the ferry leave?", [long, *CHUNKS], runner=runner, **options)
        assert answer.response is not None
        assert answer.response.prompt_tokens + 100 <= n_ctx
    shown = next(source.text for source in answer.sources if source.result.original_index == 0)
    assert "The ferry leaves at seven." in shown
    assert (shown == long) == (n_ctx == 2048)


def test_a_question_that_leaves_no_room_is_refused():
    """Where not even one sentence has room, the error says what to do."""
    with (
        Runner(TINY, n_slots=1, n_ctx=256, n_threads=1) as runner,
        pytest.raises(InvalidRequestError) as raised,
    ):
        ask("cats " * 100, ["Cats purr."], runner=runner, chat_template=TEMPLATE)
    assert raised.value.field == "question"
    assert "load the model with a larger n_ctx" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"text": "a"}, "text"),
        ({"num_samples": 2}, "num_samples"),
        ({"top_p": 2}, "top_p"),
        ({"model": "a"}, "model"),
        ({"top_n": 0}, "top_n"),
        ({"min_confidence": 1.5}, "min_confidence"),
        ({"min_confidence": "high"}, "min_confidence"),
        ({"copy": 1}, "copy"),
    ],
)
def test_a_wrong_argument_is_refused_before_a_model_is_loaded(monkeypatch, options, field):
    """The error names it, and not the model that is not there."""
    monkeypatch.setattr(
        "relevance_gen.generation.api._default_runner", None
    )  # another test may have loaded one
    monkeypatch.setenv("RELEVANCE_GEN_MODEL", "/no/such/model.gguf")
    with pytest.raises(InvalidRequestError) as raised:
        ask("cats?", ["Cats purr."], **options)
    assert raised.value.field == field


def test_a_stream_has_its_sources_first_and_its_answer_last(bigram):
    """The pieces together are the answer's text; there is no answer before the end."""
    with ask_stream(
        "treaty?", CHUNKS, runner=bigram, chat_template=TEMPLATE, max_tokens=12
    ) as stream:
        assert [source.result.original_index for source in stream.sources] == [1]
        assert stream.answer is None
        pieces = list(stream)
        assert len(pieces) > 2
        assert "".join(pieces).strip() == stream.answer.text == STORY.strip()
        assert list(stream) == []
    assert stream.result() is stream.answer


def test_what_is_copied_is_cited_from_its_place(embedded):
    """Its places stand in the chunk, also where only a part was shown; it prints with its number; silence has none."""
    chunks = [f"The old pier was long and grey. {CHUNKS[1]['text']}", CHUNKS[0], CHUNKS[2]]
    answer = ask("How do bees find flowers?", chunks, runner=embedded)
    (cited,) = answer.citations
    source, place = answer.sources[0], cited.spans[0]
    assert (place.source, place.score, cited.citation_marker) == (0, 1.0, "[1]")
    assert (
        source.result.chunk_txt[place.start : place.end]
        == answer.text[cited.start : cited.end]
        == source.text
    )
    assert source.start == place.start > 0
    assert answer.text_with_citations == f"{answer.text} [1]"
    assert answer.text_with_citations in repr(answer)
    assert answer.text_with_citations in answer._repr_html_()
    again = pickle.loads(pickle.dumps(answer))
    assert (again, again.citations) == (answer, answer.citations)
    assert ask("Who sells sharks?", chunks, runner=embedded).citations == ()


def test_what_the_sources_do_not_say_is_marked(bigram):
    """What a model writes from elsewhere has no places, and says so."""
    answer = ask("treaty?", CHUNKS, runner=bigram, chat_template=TEMPLATE, max_tokens=12)
    assert answer.text == STORY.strip()
    assert [one.spans for one in answer.citations] == [()]
    assert answer.text_with_citations == f"{answer.text} [not found in the sources]"


def test_a_stream_cites_each_sentence_before_the_next_begins(embedded):
    """Pieces end where sentences do; at the end the citations are those of the answer."""
    chunks = [
        "Bees tell each other where flowers are by dancing. Bees dance when they find flowers."
    ]
    with ask_stream("How do bees find flowers?", chunks, runner=embedded) as stream:
        seen, text = [], ""
        for piece in stream:
            assert all(one.end <= len(text) for one in stream.citations)
            seen.append(len(stream.citations))
            text += piece
    assert len(seen) > 2
    assert (seen[0], seen[-1]) == (0, len(stream.citations) - 1)
    assert stream.citations == stream.answer.citations


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["Cats", " purr.", " Dogs bark.", " Cows"], ["Cats purr."]),
        (["cats ", "purr. dogs"], ["cats purr."]),
        ([" Cats purr. Do", "gs"], ["Cats purr."]),
        (["Cats ", "purr"], ["Cats purr"]),
        (["It is v1.", "2 now."], ["It is v1.2 now."]),
        ([" ", "***"], ["***"]),
        ([], []),
    ],
)
def test_one_sentence_is_enough(pieces: list[str], shown: list[str]):
    """A sentence is over when another begins; what follows is read, so that whoever generates it comes to an end."""
    left = iter(pieces)
    stream = AnswerStream(
        (), 1.0, (TextPiece(0, piece) for piece in left), only_first_sentence=True
    )
    told = []
    for piece in stream._pieces:
        stream._text += piece
        told.append(piece)
    assert told == shown
    assert list(left) == []


def test_a_cancelled_stream_raises(bigram):
    """Nobody mistakes a part for the answer, however often it is asked for."""
    stream = ask_stream("treaty?", CHUNKS, runner=bigram, chat_template=TEMPLATE, max_tokens=500)
    next(stream)
    stream.cancel()
    for _ in range(2):
        with pytest.raises(RequestCancelledError):
            stream.result()
    assert stream.answer is None


def test_an_answer_can_be_written_as_json(embedded):
    """`to_dict` has plain values alone, and each source says what was shown of it."""
    answer = ask("How do bees find flowers?", CHUNKS, runner=embedded, top_n=1)
    read = json.loads(serialize(answer.to_dict()))
    assert set(read) == {
        "text",
        "found",
        "sources",
        "citations",
        "prompt",
        "confidence",
        "finish_reason",
    }
    (source,) = read["sources"]
    assert read["citations"] == [
        {"start": 0, "end": 54, "spans": [{"start": 0, "end": 54, "score": 1.0, "source": 0}]}
    ]
    shown = source["chunk_txt"][source["shown"]["start"] : source["shown"]["end"]]
    assert (shown, source["metadata"]) == (answer.sources[0].text, {"page": 3})


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_sources_far_beyond_the_context_are_left_out(bigram, template):
    """However much was found, as much is shown as there is room for: the model is not asked to count the rest."""
    chunks = [f"The lighthouse number {n} burned whale oil." for n in range(5000)] + [
        "The lighthouse burned. " * 20_000
    ]
    answer = ask(
        "Which lighthouse burned?",
        chunks,
        top_n=9000,
        runner=bigram,
        chat_template=template,
        max_tokens=2,
    )
    assert 1 <= len(answer.sources) < 100
    (alone,) = ask(
        "Which lighthouse?", chunks[-1:], runner=bigram, chat_template=template, max_tokens=2
    ).sources
    assert alone.text.startswith("The lighthouse burned.")


@pytest.mark.parametrize(
    "name", ["runner", "only_from_sources", "instructions", "template_variables"]
)
def test_arguments_of_a_wrong_type_are_refused(name):
    """The error names the argument, and comes before anything is loaded."""
    with pytest.raises(InvalidRequestError, match=f"{name} must be") as caught:
        ask("Who?", CHUNKS, **{name: 5})
    assert caught.value.field == name


@pytest.mark.parametrize("question", ["", " ", None, ["Who?"]])
def test_a_question_that_is_none_is_refused_by_its_name(question):
    """One question at a time, and not a blank one; the error calls it as `ask` does."""
    with pytest.raises(
        InvalidRequestError, match="question must be a string that is not blank"
    ) as caught:
        ask(question, CHUNKS)
    assert caught.value.field == "question"
