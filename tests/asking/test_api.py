"""Tests of `ask` and `ask_stream` with the embedded model, a bigram model and a chat template."""

import json
import pathlib
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from relevance_gen import (
    AnswerStream,
    Chunk,
    ChunkIndex,
    Encoder,
    InvalidRequestError,
    ModelLoadError,
    RequestCancelledError,
    Runner,
    TextPiece,
    ask,
    ask_stream,
    read_documents,
    search,
)
from relevance_gen.asking.answer import NO_ANSWER_FOUND, NOTHING_FOUND, Source
from relevance_gen.asking.prompts import passage_of
from relevance_gen.wire import serialize
from small_models import BIGRAM, ENCODER, STORY, TINY
from tests.cli.documents import docx, run, table
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
    """A runner whose model writes the story after the letter z; it has no chat template."""
    with Runner(BIGRAM, n_slots=2, n_ctx=1024, n_threads=1) as runner:
        yield runner


def test_ask_with_embedded_model_copies_sentence(embedded):
    """Without a template the model gets the best passages and copies one sentence with its source."""
    answer = ask("How do bees find flowers?", CHUNKS, runner=embedded, top_n=2)
    assert answer.text == "Bees tell each other where the flowers are by dancing."
    assert answer.finish_reason == "eos"
    best = answer.sources[0]
    assert (best.result.original_index, best.result.metadata) == (1, {"page": 3})
    assert best.text == "Bees tell each other where the flowers are by dancing."
    assert answer.prompt == f"Context: {best.text}\nQuestion: How do bees find flowers?\nAnswer:"


POLICY = docx(
    run("Travel policy"),
    run("A hotel may cost at most these amounts.")
    + table(
        ("City", "Limit per night", "Breakfast"),
        ("London", "£190", "£20"),
        ("Paris", "€150", "€15"),
        ("Rome", "€130", "€9"),
    ),
)
BRANCHES = "branch,city,manager\n" + "".join(
    f"B{number:03},City {number % 7},Manager {number}\n" for number in range(100)
)


@pytest.mark.parametrize(
    ("name", "content", "question", "row"),
    [
        (
            "policy.docx",
            POLICY,
            "How much may a hotel in London cost?",
            "| City: London | Limit per night: £190 | Breakfast: £20 |",
        ),
        (
            "branches.csv",
            BRANCHES.encode(),
            "Who is the manager of branch B017?",
            "| branch: B017 | city: City 3 | manager: Manager 17 |",
        ),
    ],
)
def test_question_about_table_row_finds_its_value(embedded, tmp_path, name, content, question, row):
    """The best passage and the answer are the row of a table, with the names of its columns."""
    (tmp_path / name).write_bytes(content)
    chunks = read_documents([tmp_path / name])
    best = search(question, chunks, spans=True).best[0]
    assert row in passage_of(Source.whole(best)).text
    answer = ask(question, chunks, runner=embedded)
    assert row in answer.text
    assert answer.text.count(": ") == row.count(": ")


def test_ask_with_long_passage_shows_one_source(embedded):
    """A passage that fills the context is the only source in the prompt."""
    long = "The ferry " + "and the very old boat of the harbour " * 12 + "leave at seven."
    answer = ask(
        "When does the very old boat of the harbour leave?", [long, "The harbour."], runner=embedded
    )
    assert [source.text for source in answer.sources] == [long]
    assert answer.response.prompt_tokens > 128


def test_ask_of_index_equals_ask_of_list(embedded):
    """`ChunkIndex` and a list of chunks give the same answer; `where` filters sources in both."""
    question = "When does the ferry leave, and who built the lighthouse?"
    for options in ({}, {"where": [2]}, {"top_n": 1}):
        one = ask(question, CHUNKS, runner=embedded, **options)
        other = ask(question, ChunkIndex(CHUNKS), runner=embedded, **options)
        assert (one.text, one.sources, one.prompt) == (other.text, other.sources, other.prompt)
    assert {
        source.result.original_index
        for source in ask(question, CHUNKS, runner=embedded, where=[2]).sources
    } == {2}


def test_ask_with_encoder_ranks_sources_by_encoder(embedded):
    """The sources are the results of a search with the encoder, with equal order and scores."""
    question = "Who built the lighthouse?"
    with Encoder(ENCODER) as encoder:
        answer = ask(question, CHUNKS, runner=embedded, encoder=encoder, top_n=1)
        (found,) = search(question, CHUNKS, 1, spans=True, encoder=encoder)
    assert [source.result for source in answer.sources] == [found]
    assert found.chunk_score > search(question, CHUNKS, 1)[0].chunk_score


def test_ask_with_reranker_ranks_sources_by_reranker(embedded):
    """The source is the chunk with the highest reranker score; the confidence stays lexical."""
    question = "When does the ferry leave, and who built the lighthouse?"
    words = search(question, CHUNKS)
    last = words.best[-1].chunk_txt
    reported = {result.chunk_txt: 0.5 for result in words} | {last: 0.75}
    answer = ask(question, CHUNKS, runner=embedded, reranker=HashReranker(reported), top_n=1)
    assert len(words) > 1
    assert [(source.result.chunk_txt, source.result.chunk_score) for source in answer.sources] == [
        (last, 0.75)
    ]
    assert answer.confidence == words.confidence


def test_ask_without_results_generates_nothing(bigram):
    """Without results the answer is a fixed text; only `only_from_sources=False` runs the model."""
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


def test_ask_without_results_loads_no_model(monkeypatch):
    """Without results a missing model file raises no error, because no model is loaded."""
    monkeypatch.setattr(
        "relevance_gen.generation.api._default_runner", None
    )  # another test may have loaded one
    monkeypatch.setenv("RELEVANCE_GEN_MODEL", "/no/such/model.gguf")
    assert ask("zebra?", CHUNKS).text == NOTHING_FOUND


def test_ask_below_min_confidence_returns_sources_only(monkeypatch):
    """Below `min_confidence` the answer lists the closest passages and no model is loaded."""
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
text_lists = st.lists(
    st.lists(words, min_size=1, max_size=30).map(" ".join), min_size=1, max_size=3
)


@costly
@given(chunks=text_lists, question=st.lists(words, min_size=1, max_size=4).map(" ".join))
def test_embedded_model_answer_is_part_of_its_source(embedded, chunks, question):
    """The answer is a literal excerpt of its source, up to the end of a sentence, in any script."""
    assume(any(chunk.strip() for chunk in chunks) and question.strip())
    answer = ask(
        question, [chunk for chunk in chunks if chunk.strip()], runner=embedded, min_confidence=0
    )
    if answer.found:
        assert answer.finish_reason == "eos"
        assert answer.text == answer.sources[0].reference
        assert answer.text in " ".join(answer.sources[0].result.chunk_txt.split())


def test_copy_in_unseen_language_returns_sentence(embedded):
    """Copying returns the sentence in Russian and Chinese; free generation returns other text."""
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


def test_copy_supports_request_options(embedded):
    """Stop strings and `max_tokens` cut a copied answer; it has tokens and log probabilities."""
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


def test_chat_model_with_copy_returns_best_passage(embedded):
    """With `copy=True` a chat model can only generate the best passage of the search."""
    question = "the lighthouse, a treaty, the ferry and whale oil?"
    answer = ask(question, CHUNKS, runner=embedded, chat_template=TEMPLATE, copy=True, top_n=3)
    assert len(answer.sources) == 3
    assert answer.text == CHUNKS[0]
    free = ask(question, CHUNKS, runner=embedded, chat_template=TEMPLATE, max_tokens=9)
    assert free.text != answer.text


def test_output_constraint_overrides_extractive_model(embedded):
    """An output constraint disables the copying of an extractive model; `copy=True` with it fails."""
    assert ask("How do bees find flowers?", CHUNKS, runner=embedded, choice=[" No."]).text == "No."
    with pytest.raises(InvalidRequestError, match="copy cannot be combined with choice"):
        ask("How do bees find flowers?", CHUNKS, runner=embedded, choice=[" No."], copy=True)


def test_chat_model_prompt_has_numbered_sources(bigram):
    """A template renders a single message with complete chunks, best first, and thinking disabled."""
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


def test_chat_model_gets_all_chunks_if_they_fit(bigram):
    """Chunks without a word of the question follow the others if all fit; ``fill=False`` and a small context leave them out."""
    options = {"chat_template": TEMPLATE, "runner": bigram, "max_tokens": 12}

    def sources(chunks=CHUNKS, **more):
        answer = ask("Was a treaty signed?", chunks, **options, **more)
        assert answer.found
        return [source.result.original_index for source in answer.sources]

    assert sources() == [1, 0, 2]
    assert sources(top_n=2) == [1, 0]
    assert sources(fill=False) == [1]
    assert sources([*CHUNKS, "Cows moo. " * 400]) == [1]
    assert sources([*CHUNKS, "Cows moo. " * 400], fill=True)[:3] == [1, 0, 2]
    none_found = ask("zebra?", CHUNKS, **options)
    assert (none_found.found, none_found.sources) == (False, ())


@pytest.mark.parametrize("options", [{}, {"copy": True}])
def test_answer_without_model_adds_no_chunks(monkeypatch, options):
    """Without a model, the search does not look for chunks that share nothing with the question."""
    fills = []

    def recording(*args, **options):
        fills.append(options["fill"])
        return search(*args, **options)

    monkeypatch.setattr("relevance_gen.asking.api.search", recording)
    assert ask("Was a treaty signed?", CHUNKS, **options).found
    assert fills == [False]


def test_ask_options_reach_prompt_and_generation(bigram):
    """`ask` passes instructions and template variables to the prompt and stop strings to the model."""
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
def test_prompt_and_answer_fit_context(n_ctx):
    """Prompt and longest answer fit the context in tokens; a cut chunk keeps its best sentences."""
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


def test_question_larger_than_context_raises():
    """If no sentence fits next to the question, the error suggests a larger `n_ctx`."""
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
def test_ask_with_invalid_argument_raises_before_model_load(monkeypatch, options, field):
    """The error names the argument and not the missing model."""
    monkeypatch.setattr(
        "relevance_gen.generation.api._default_runner", None
    )  # another test may have loaded one
    monkeypatch.setenv("RELEVANCE_GEN_MODEL", "/no/such/model.gguf")
    with pytest.raises(InvalidRequestError) as raised:
        ask("cats?", ["Cats purr."], **options)
    assert raised.value.field == field


def test_ask_stream_has_sources_first_and_answer_last(bigram):
    """The joined pieces equal the text of the answer, which is None before the end."""
    with ask_stream(
        "treaty?", CHUNKS, runner=bigram, chat_template=TEMPLATE, max_tokens=12
    ) as stream:
        assert [source.result.original_index for source in stream.sources] == [1, 0, 2]
        assert stream.answer is None
        pieces = list(stream)
        assert len(pieces) > 2
        assert "".join(pieces).strip() == stream.answer.text == STORY.strip()
        assert list(stream) == []
    assert stream.result() is stream.answer


def test_copied_answer_cites_span_in_chunk(embedded):
    """Spans refer to the complete chunk even if the prompt had a part; an empty answer has none."""
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
    parsed = pickle.loads(pickle.dumps(answer))
    assert (parsed, parsed.citations) == (answer, answer.citations)
    assert ask("Who sells sharks?", chunks, runner=embedded).citations == ()


def test_unsupported_answer_has_no_spans(bigram):
    """A generated sentence without support in the sources has no spans and is marked as such."""
    answer = ask("treaty?", CHUNKS, runner=bigram, chat_template=TEMPLATE, max_tokens=12)
    assert answer.text == STORY.strip()
    assert [citation.spans for citation in answer.citations] == [()]
    assert answer.text_with_citations == f"{answer.text} [not found in the sources]"


def test_ask_stream_cites_sentence_before_next_sentence(embedded):
    """Pieces end at sentence ends; the citations of the stream and of the answer are equal."""
    chunks = [
        "Bees tell each other where flowers are by dancing. Bees dance when they find flowers."
    ]
    with ask_stream("How do bees find flowers?", chunks, runner=embedded) as stream:
        seen, text = [], ""
        for piece in stream:
            assert all(citation.end <= len(text) for citation in stream.citations)
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
def test_answer_stream_stops_after_first_sentence(pieces: list[str], shown: list[str]):
    """With `only_first_sentence` the stream drops later text but reads the generator to its end."""
    left = iter(pieces)
    stream = AnswerStream(
        (), 1.0, (TextPiece(0, piece) for piece in left), only_first_sentence=True
    )
    reported = []
    for piece in stream._pieces:
        stream._text += piece
        reported.append(piece)
    assert reported == shown
    assert list(left) == []


def test_cancelled_ask_stream_raises(bigram):
    """Each call of `result` raises `RequestCancelledError`, so a partial text is never an answer."""
    stream = ask_stream("treaty?", CHUNKS, runner=bigram, chat_template=TEMPLATE, max_tokens=500)
    next(stream)
    stream.cancel()
    for _ in range(2):
        with pytest.raises(RequestCancelledError):
            stream.result()
    assert stream.answer is None


def test_answer_to_dict_is_json_serializable(embedded):
    """`to_dict` contains plain values, and each source has the excerpt that was in the prompt."""
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
def test_ask_with_many_results_limits_token_counting(bigram, template):
    """Sources that cannot fit the context are dropped before the model counts their tokens."""
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
def test_ask_with_wrong_argument_type_raises(name):
    """The error names the argument and is raised before a model is loaded."""
    with pytest.raises(InvalidRequestError, match=f"{name} must be") as caught:
        ask("Who?", CHUNKS, **{name: 5})
    assert caught.value.field == name


def test_instructions_without_a_chat_model_raise(bigram):
    """A model that does not follow instructions refuses them; they are not ignored."""
    for options in ({}, {"runner": bigram}, {"max_tokens": 9}):
        with pytest.raises(InvalidRequestError, match=r"^instructions must not be given") as caught:
            ask("Was a treaty signed?", CHUNKS, instructions="Answer in French", **options)
        assert caught.value.remedy == "pass the runner of a chat model"


@pytest.mark.parametrize("folder", ["docs", pathlib.Path("docs")])
def test_ask_with_path_names_folder_index(folder):
    """A path instead of chunks raises an error that names `FolderIndex`."""
    with pytest.raises(InvalidRequestError, match=r"chunks must be .* FolderIndex\(path\)"):
        ask("Who?", folder)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("top_m", "top_m is not a known option; did you mean top_n?"),
        ("min_relative_scores", "did you mean min_relative_score?"),
        ("max_token", "did you mean max_tokens?"),
        ("zzzzzzzz", "the options are question, chunks, .*where.*temperature"),
        ("text", r"pass ChunkIndex\(chunks, text=…\)"),
        ("num_samples", "a question has one answer"),
        ("spans", "spans is not a known option"),
    ],
)
def test_ask_with_unknown_option_suggests_a_known_one(option, message):
    """The options are those of `ask`, of a search and of a generation."""
    with pytest.raises(InvalidRequestError, match=message) as caught:
        ask("Who?", CHUNKS, **{option: 1})
    assert caught.value.field == option


@pytest.mark.parametrize("question", ["", " ", None, ["Who?"]])
def test_ask_with_invalid_question_raises(question):
    """A list or a blank string is rejected with the field name `question`."""
    with pytest.raises(
        InvalidRequestError, match="question must be a string that is not blank"
    ) as caught:
        ask(question, CHUNKS)
    assert caught.value.field == "question"


def test_ask_of_files_uses_neighbors_within_a_file(embedded):
    """The chunk after a match is a source if both are of one file, unless `neighbors` is given."""
    texts = ["When did the old ferry sink?", "It was in 1903.", "Cows moo."]

    def sources(paths, **options):
        chunks = [Chunk(text, {"path": path}) for text, path in zip(texts, paths, strict=True)]
        answer = ask(
            "Did the old ferry sink?", chunks, runner=embedded, min_confidence=1.0, **options
        )
        return sorted(source.result.original_index for source in answer.sources)

    assert sources(["a", "a", "b"]) == [0, 1]
    assert sources(["a", "b", "b"]) == sources(["a", "a", "b"], neighbors=0) == [0]
    assert [
        s.result.original_index for s in ask("the old ferry", texts, runner=embedded).sources
    ] == [0]
