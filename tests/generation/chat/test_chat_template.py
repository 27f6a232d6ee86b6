"""Chat templates: equality with transformers, limits, and protection against forged special tokens."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relevance_gen
from relevance_gen import wire
from relevance_gen.errors import ContextLengthError, InvalidRequestError, RunnerClosedError
from relevance_gen.generation.chat.chat_template import Renderer, render_prompt, renderer_for
from relevance_gen.generation.queue.request import RequestContext
from relevance_gen.generation.runner import Runner
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.language_model import TOKEN_BOUNDARY, ChatFormat
from relevance_gen.llama.options import ModelOptions
from relevance_gen.types import GenerationRequest
from small_models import BIGRAM, BIGRAM_TOKENS, BOS, END, LETTER_A, STORY, add_chat_template
from small_models.make import byte_level_vocabulary, random_tensors, write_model

TEMPLATES = {
    path.stem: path.read_text()
    for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))
}
RENDERED = Path(__file__).parent / "templates" / "rendered.json"
"""What transformers 5.23 made of `CONVERSATIONS`: template to name to text, or null where the
template refuses."""

SYSTEM = {"role": "system", "content": "  Be brief. "}
HELLO = {"role": "user", "content": "Hello!\n"}
ANSWER = {"role": "assistant", "content": " <think>Hm.</think>Hi & <welcome> "}
AGAIN = {"role": "user", "content": "Größe? 'quoted' \"twice\" {{ 7 * 7 }}"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Wie ist's <hier>?", "parameters": {}},
    }
]
DOCUMENTS = [{"title": "Cats", "text": "They purr."}, {"title": "Dogs", "text": "They bark."}]

CONVERSATIONS = {
    "one": ([HELLO], {}),
    "system": ([SYSTEM, HELLO], {}),
    "turns": ([HELLO, ANSWER, AGAIN], {}),
    "all": ([SYSTEM, HELLO, ANSWER, AGAIN], {}),
    "no prompt": ([SYSTEM, HELLO, ANSWER], {"add_generation_prompt": False}),
    "tools": ([SYSTEM, HELLO], {"tools": TOOLS, "documents": DOCUMENTS, "enable_thinking": False}),
    "tool answers": (
        [HELLO, ANSWER, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}],
        {},
    ),
    "two users": ([HELLO, AGAIN], {}),
}
MODEL = ChatFormat(bos="<s>", eos="</s>")
HI = [{"role": "user", "content": "ab"}]
PLAIN = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


def rendered(template, messages, variables):
    """Return the rendered conversation, or None if the template rejects it."""
    try:
        return render_prompt(messages, MODEL, template, variables)
    except InvalidRequestError as error:
        assert error.field == "messages"
        return None


@pytest.mark.parametrize("name", TEMPLATES)
def test_render_prompt_equals_recorded_output_of_transformers(name):
    """Eleven templates render or reject each conversation as recorded with transformers."""
    today = datetime.now().strftime("%d %B %Y")
    recorded = json.loads(RENDERED.read_text())[name]
    assert set(recorded) == set(CONVERSATIONS)
    for conversation, expected in recorded.items():
        text = rendered(TEMPLATES[name], *CONVERSATIONS[conversation])
        assert text == (expected if expected is None else expected.replace("TODAY", today)), (
            conversation
        )


@pytest.mark.parametrize("name", TEMPLATES)
def test_render_prompt_equals_installed_transformers(name):
    """The same comparison with transformers itself; skipped without the dependency group ``chat``."""
    render = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    for messages, variables in CONVERSATIONS.values():
        given = {
            "add_generation_prompt": True,
            "bos_token": "<s>",
            "eos_token": "</s>",
            **variables,
        }
        try:
            expected = render(conversations=[messages], chat_template=TEMPLATES[name], **given)[0][
                0
            ]
        except Exception:
            expected = None
        assert rendered(TEMPLATES[name], messages, variables) == expected


# ── Limits ────────────────────────────────────────────────────────────────────────────────────────

LOOP = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3


@pytest.fixture
def renderer():
    """A renderer with a time limit that is long enough on a busy machine."""
    renderer = Renderer(timeout_s=60)
    yield renderer
    renderer.close()


def test_slow_templates_of_anonymous_clients_do_not_delay_authenticated_clients(monkeypatch):
    """Authenticated clients, and this process itself, have a separate sandbox."""
    monkeypatch.setattr(renderer_for("")._sandbox, "_timeout_s", 2)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(render_prompt, HI, MODEL, LOOP, renderer=renderer_for(""))
        for client in ("me", None):
            assert render_prompt(HI, MODEL, PLAIN, renderer=renderer_for(client)) == "<s>ab"
        assert not slow.done()
        assert isinstance(slow.exception(), InvalidRequestError)


@pytest.mark.parametrize(
    ("template", "field", "says"),
    [
        ("{{ 'a' * 10**10 }}", "chat_template", "MemoryError"),
        ("{{ 'a' * 2**25 }}", "chat_template", "more than 16,777,216 characters"),
        ("{{ range(10**9) | list }}", "chat_template", "Range too big"),
        ("{% for a in messages %}", "chat_template", "Unexpected end"),
        (
            "{{ '(' * 9 }}{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
            "chat_template",
            "RecursionError",
        ),
        ("{{ messages.nothing.here }}", "messages", "has no attribute"),
        ("{{ raise_exception('only poems') }}", "messages", "only poems"),
        ("{{ messages.append(1) }}", "messages", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "messages", "unsafe"),
        ("{% include '/etc/passwd' %}", "messages", "no loader"),
    ],
)
def test_failing_template_is_an_error_and_the_next_one_is_rendered(renderer, template, field, says):
    """A template that fails in any way raises an error that names its field."""
    with pytest.raises(InvalidRequestError, match=says) as caught:
        render_prompt(HI, MODEL, template, renderer=renderer)
    assert caught.value.field == field
    assert len(str(caught.value)) < 700
    assert render_prompt(HI, MODEL, PLAIN, renderer=renderer) == "<s>ab"


def test_endless_template_is_an_error_within_the_time_limit():
    """The template is rejected at the time limit, and the next template is rendered."""
    renderer = Renderer(timeout_s=0.5)
    with pytest.raises(InvalidRequestError, match=r"within 0\.5 seconds") as caught:
        render_prompt(HI, MODEL, LOOP, renderer=renderer)
    assert caught.value.field == "chat_template"
    assert render_prompt(HI, MODEL, PLAIN, renderer=renderer) == "<s>ab"
    renderer.close()


def test_renderer_restarts_its_process_after_a_kill(renderer):
    """The next conversation starts a new process."""
    assert render_prompt(HI, MODEL, PLAIN, renderer=renderer) == "<s>ab"
    renderer._sandbox._process.popen.kill()
    renderer._sandbox._process.popen.wait()
    assert render_prompt(HI, MODEL, PLAIN, renderer=renderer) == "<s>ab"


def test_renderer_returns_each_thread_its_own_text(renderer):
    """Conversations that are rendered concurrently get their own texts."""
    with ThreadPoolExecutor(8) as pool:
        texts = pool.map(
            lambda n: render_prompt(
                [{"role": "user", "content": f"{n}" * 999}],
                MODEL,
                PLAIN,
                renderer=renderer,
            ),
            range(64),
        )
        assert list(texts) == [f"<s>{f'{n}' * 999}" for n in range(64)]


def nested(depth):
    """Return nested lists of the given depth."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("messages", "options", "field"),
    [
        ([], {}, "messages"),
        ("hello", {}, "messages"),
        ({"role": "user"}, {}, "messages"),
        (None, {}, "messages"),
        (["hello"], {}, "messages[0]"),
        ([HELLO, {"content": "x"}], {}, "messages[1].role"),
        ([{"role": 1, "content": "x"}], {}, "messages[0].role"),
        ([{"role": "user", "content": object()}], {}, "messages"),
        ([{"role": "user", "content": "x" * (1 << 24)}], {}, "messages"),
        ([{"role": "user", "content": nested(700)}], {}, "messages"),
        ([{"role": "user", "content": nested(100_000)}], {}, "messages"),
        ([HELLO], {"chat_template": 7}, "chat_template"),
        ([HELLO], {"chat_template": None}, "chat_template"),
        ([HELLO], {"template_variables": {"tools": object()}}, "template_variables"),
        ([HELLO], {"template_variables": [1]}, "template_variables"),
        ([HELLO], {"text": "x"}, "text"),
        ([HELLO], {"max_tokens": 0}, "max_tokens"),
        ([HELLO], {"max_token": 1}, "max_token"),
        ([{"role": "user", "content": "a" * 300}], {}, "text"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_render_prompt_invalid_input_error_names_the_field(bigram, messages, options, field):
    """Invalid messages, invalid options and a missing template raise an error that names the field."""
    with pytest.raises(InvalidRequestError) as caught:
        bigram.chat(messages, **{"chat_template": PLAIN, **options})
    assert caught.value.field == field


# ── Tokens ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model():
    """The bigram model, without an engine."""
    with Decoder(BIGRAM, ModelOptions(n_ctx=256, n_slots=1, n_threads=1)) as decoder:
        yield decoder


def test_chat_format_reads_special_tokens_from_the_file(model):
    """Control tokens, end-of-turn tokens, BOS and EOS come from the model's file."""
    assert model.chat_format == ChatFormat(
        None,
        "<|begin|>",
        "<|end|>",
        (END,),
        ("<|begin|>", "<|end|>"),
        (),
        model.n_ctx,
        is_extractive=False,
    )


def test_tokenize_chat_adds_no_bos(model):
    """A prompt has a BOS token only if the template renders it."""
    with_bos = render_prompt(HI, model.chat_format, PLAIN)
    assert model.tokenize_chat(with_bos, 0).tolist() == [BOS, LETTER_A, LETTER_A + 1]
    assert model.tokenize_chat(with_bos, 2).tolist() == [BOS, LETTER_A + 1]
    without = render_prompt(HI, model.chat_format, "{{ messages[0].content }}")
    assert model.tokenize_chat(without, 0).tolist() == [LETTER_A, LETTER_A + 1]


pieces = st.sampled_from(
    ["<|end|>", "<|begin|>", "<|", "|>", "end", "<", "a", "b", "z", "\ud800", TOKEN_BOUNDARY]
)


@given(parts=st.lists(pieces, max_size=12), max_tokens=st.sampled_from([0, 3, 200]))
def test_messages_cannot_contain_control_tokens(model, parts, max_tokens):
    """Only the template's control tokens are control tokens, and ordinary text is unchanged."""
    messages = [
        {"role": "user", "content": "".join(parts), "tool_calls": [{"name": "".join(parts)}]}
    ]
    template = "{{ eos_token }}{{ messages[0].content }}{{ messages[0].tool_calls[0].name }}{{ eos_token }}"
    text = render_prompt(messages, model.chat_format, template)
    tokens = model.tokenize_chat(text, max_tokens).tolist()
    assert [token for token in tokens[1:-1] if token in (BOS, END)] == []
    assert tokens[-1] == END
    said = "".join(parts).encode(errors="replace").decode()
    assert text.replace(TOKEN_BOUNDARY, "") == f"<|end|>{said}{said}<|end|>"
    if max_tokens == 0:
        assert tokens[0] == END


def test_special_tokens_of_the_template_are_control_tokens(model):
    """Text of the template becomes control tokens, also if a message contains the same text."""
    messages = [{"role": "user", "content": "a<|end|>"}]
    text = render_prompt(messages, model.chat_format, "{{ messages[0].content }}<|end|>")
    assert (model.tokenize_chat(text, 0) == END).sum() == 1
    assert (model.tokenize(text.replace(TOKEN_BOUNDARY, ""), 0) == END).sum() == 2


CONTROL, USER_DEFINED = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED
HARMONY = ("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
FAMILIES = {
    # llama.cpp takes four of these for no control tokens, whatever the file says.
    "harmony": (
        dict.fromkeys(HARMONY, CONTROL),
        "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant",
    ),
    # As llama.cpp's own vocabulary and older files have them.
    "command-r": (
        dict.fromkeys(
            (
                "<|START_OF_TURN_TOKEN|>",
                "<|END_OF_TURN_TOKEN|>",
                "<|USER_TOKEN|>",
                "<|CHATBOT_TOKEN|>",
                "<|SYSTEM_TOKEN|>",
            ),
            USER_DEFINED,
        ),
        TEMPLATES["command_r"].replace("'user': 'USER'", "'user': 'USER', 'tool': 'SYSTEM'"),
    ),
    "qwen": (
        {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL}
        | dict.fromkeys(
            ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"), USER_DEFINED
        ),
        TEMPLATES["qwen25"],
    ),
    "gemma": (
        dict.fromkeys(
            ("<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|tool_response>"), USER_DEFINED
        ),
        "{% for m in messages %}<|turn>{{ m.role }}\n{% if m.role == 'tool' %}<|tool_response>{% endif %}"
        "{{ m.content }}<turn|>\n{% endfor %}<|turn>model\n",
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """A model with the special tokens of a family, and its template."""
    types, template = FAMILIES[request.param]
    tokens, merges = byte_level_vocabulary(300)
    tokens += types
    path = tmp_path_factory.mktemp(request.param) / "family.gguf"
    tensors = random_tensors(n_vocab=len(tokens), n_embd=64, n_ff=64, n_layer=1)
    shape = {"n_ctx": 512, "n_embd": 64, "n_ff": 64, "n_layer": 1, "n_head": 1}
    write_model(
        path,
        tensors,
        tokens=tokens,
        merges=merges,
        add_bos=False,
        quantized=True,
        types=types,
        **shape,
    )
    with Decoder(path, ModelOptions(n_ctx=512, n_slots=1, n_threads=1)) as decoder:
        yield decoder, dict(zip(types, range(300, len(tokens)), strict=True)), template


@given(data=st.data())
def test_messages_cannot_contain_tokens_with_a_meaning_in_the_template(family, data):
    """Messages of users, tools and assistants cannot contain them; a token that the template builds is a token."""
    decoder, special, template = family
    roles = data.draw(
        st.lists(st.sampled_from(["user", "assistant", "tool"]), min_size=1, max_size=4)
    )
    parts = st.lists(
        st.sampled_from([*special, *(text[:3] for text in special), "|>", ">", "a", "\n"]),
        max_size=4,
    )
    messages = [{"role": role, "content": "".join(data.draw(parts))} for role in roles]
    innocent = [{"role": role, "content": "a"} for role in roles]

    def parsed(messages):
        tokens = decoder.tokenize_chat(
            render_prompt(messages, decoder.chat_format, template), 0
        ).tolist()
        return [token for token in tokens if token in (0, 1) or token in special.values()]

    assert parsed(messages) == parsed(innocent)
    assert parsed(innocent)


@given(st.text("<|a>[", max_size=12))
def test_overlapping_special_tokens_are_all_split(said):
    """No special token remains between two boundaries, also if tokens overlap."""
    tokens = ("[[<|a|>]]", "<|a|>", "|>]", "<a", "a>a", "aa")
    for text in (said, *tokens, "".join(tokens)):
        written = render_prompt(
            [{"role": "user", "content": text}], ChatFormat(control=tokens), PLAIN
        )
        assert written.replace(TOKEN_BOUNDARY, "") == text
        assert not any(token in part for part in written.split(TOKEN_BOUNDARY) for token in tokens)


def test_reasoning_of_earlier_answers_is_found_by_the_template():
    """The template removes the reasoning of an earlier answer; the same text in a user message is text."""
    model = ChatFormat(user_defined=("<think>", "</think>", "<table>", "\n\n", "user"))
    template = (
        "{% for m in messages %}{{ m.role }}:{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
        "{% else %}{{ m.content }}{% endif %};{% endfor %}<think>"
    )
    messages = [
        {"role": role, "content": "<think>Hm.</think>Yes\n\n<table>"}
        for role in ("assistant", "user")
    ]
    text = render_prompt(messages, model, template)
    assert (
        text
        == f"assistant:Yes\n\n<table>;user:<{TOKEN_BOUNDARY}think>Hm.<{TOKEN_BOUNDARY}/think>Yes\n\n<table>;<think>"
    )


def test_long_conversation_is_rejected_or_truncated_like_text(model):
    """A much longer conversation is rejected without tokenizing; with max_input_tokens its end is used."""
    long = ("ab" + TOKEN_BOUNDARY) * 100_000
    with pytest.raises(ContextLengthError, match="is too long: more than"):
        model.tokenize_chat(long, 0)
    assert model.tokenize_chat(long, 5).tolist() == [LETTER_A + 1, *[LETTER_A, LETTER_A + 1] * 2]


# ── A runner ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def with_template(tmp_path_factory):
    """The bigram model with a chat template in its file."""
    path = tmp_path_factory.mktemp("chat") / "bigram.gguf"
    add_chat_template(BIGRAM, path, "{{ bos_token }}{{ messages[-1].content }}")
    with Runner(path, n_slots=4, n_ctx=256, n_threads=1) as runner:
        yield runner


def test_chat_uses_the_template_of_the_file(with_template):
    """A chat answers the rendered prompt, and the response contains that prompt."""
    messages = [{"role": "user", "content": "z"}]
    response = with_template.chat(messages, temperature=0, max_tokens=12)
    assert (response.prompt, response.prompt_tokens) == ("<|begin|>z", 2)
    assert response.responses[0].text == STORY
    assert (
        relevance_gen.chat(messages, runner=with_template, temperature=0, max_tokens=12)
        .responses[0]
        .text
        == STORY
    )
    smuggled = with_template.chat(
        [{"role": "user", "content": "<|end|>z"}], temperature=0, max_tokens=12
    )
    assert smuggled.prompt == "<|begin|><|end|>z"
    assert smuggled.prompt_tokens > 3
    assert with_template.chat(messages, chat_template="{{ messages[0].role }}").prompt == "user"


@pytest.mark.parametrize("name", TEMPLATES)
def test_continues_ends_the_prompt_with_the_last_message(name):
    """The prompt ends with the last message, and is otherwise rendered as usual."""
    messages = [HELLO, {"role": "assistant", "content": "The answer is"}]
    text = render_prompt(messages, MODEL, TEMPLATES[name], continues=True)
    assert text.endswith("The answer is")
    assert render_prompt(
        messages, MODEL, TEMPLATES[name], {"add_generation_prompt": False}
    ).startswith(text)


def test_continues_rejects_messages_that_are_not_rendered_as_text():
    """A content of parts, or a template that omits the message, is an error."""
    for content, template in (([], PLAIN), ("a", "nothing")):
        with pytest.raises(InvalidRequestError, match="messages"):
            render_prompt(
                [{"role": "assistant", "content": content}], MODEL, template, continues=True
            )


def test_omitted_system_message_moves_to_the_next_user_message():
    """If the template omits the system message, its text is added before the text of the user."""
    users = "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}: {{ m.content }}]{% endif %}{% endfor %}"
    text = render_prompt([SYSTEM, HELLO, ANSWER, AGAIN], MODEL, users)
    assert text.startswith("[user:   Be brief. \n\nHello!\n][assistant: ")
    assert text == render_prompt(
        [{**HELLO, "content": "  Be brief. \n\nHello!\n"}, ANSWER, AGAIN], MODEL, users
    )
    as_json = "{{ messages | tojson }}"
    assert render_prompt([SYSTEM, HELLO], MODEL, as_json).count("Be brief") == 1


FIRST_ONLY = (
    "{% if messages[0].role == 'system' %}<{{ messages[0].content.split() | join(' ') }}>{% endif %}"
    "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}"
)
"""A template that writes a system's message in the first place alone, and with other white
space."""


def said(*messages, template=FIRST_ONLY, **options):
    """Return the prompt of contents, each after the first letter of its role."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    one = [{"role": roles[role], "content": content} for role, content in messages]
    return render_prompt(one, MODEL, template, **options)


def test_rendered_system_message_is_not_moved():
    """The check is per message, and other text of the prompt does not matter."""
    assert said(("s", "Be  brief."), ("u", "a")) == "<Be brief.>[a]"
    assert said(("s", "Be  brief."), ("s", "b"), ("u", "a")) == "<Be brief.>[b\n\na]"
    assert said(("u", "banana"), ("s", "a"), ("s", "b"), ("u", "c")) == "[banana][a\n\nb\n\nc]"
    assert said(("s", ""), ("u", "a")) == "<>[a]"
    first_part = "{% for m in messages %}[{{ m.content if m.content is string else m.content[0].text }}]{% endfor %}"
    assert said(("s", [{"type": "text", "text": "b"}]), ("u", "a"), template=first_part) == "[b][a]"


def test_omitted_system_message_after_all_users_moves_to_the_last_user_message():
    """Also if an answer is continued; without a user message the error names the system message."""
    assert said(("u", "a"), ("s", "b"), ("s", "c")) == "[a\n\nb\n\nc]"
    assert said(("u", "a"), ("s", "b"), ("a", "c"), continues=True) == "[a\n\nb][c"
    with pytest.raises(InvalidRequestError, match=r"messages\[1\] is omitted by the chat template"):
        said(("s", "a"), ("s", "b"), ("a", "c"))


def test_omitted_system_message_with_parts_is_moved_as_text():
    """The texts of the parts are joined; parts of a user message get an additional part."""
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    assert said(("u", "z"), ("s", parts), ("u", "a"), template=FIRST_ONLY) == "[z][b\nc\n\na]"
    by_parts = (
        "{% for m in messages if m.role == 'user' %}"
        "{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"
    )
    assert (
        said(("s", parts), ("u", [{"type": "text", "text": "a"}]), template=by_parts)
        == "(b\nc\n\n)(a)"
    )


def test_chat_without_template_is_an_error(bigram):
    """The error names the missing template."""
    with pytest.raises(
        InvalidRequestError,
        match="chat_template is required: the model's file has no chat template",
    ):
        bigram.chat(HI)


def test_chat_ends_with_the_models_end_token(bigram):
    """A plain generation continues after that token; eos_token_ids adds further end tokens."""
    forced = {"logit_bias": {END: 100}, "max_tokens": 5, "return_tokens": True}
    (plain,) = bigram.generate({"text": "a", **forced}).responses
    (chat,) = bigram.chat(HI, chat_template=PLAIN, **forced).responses
    assert (plain.generated_tokens, plain.finish_reason) == (5, "length")
    assert (chat.tokens, chat.finish_reason, chat.text) == ((END,), "eos", "")
    (other,) = bigram.chat(
        HI, chat_template=PLAIN, eos_token_ids=[4], max_tokens=5, logit_bias={4: 100}
    ).responses
    assert other.finish_reason == "eos"


def test_streamed_chat_pieces_join_to_the_text(with_template):
    """The pieces of a streamed chat are its text."""
    with with_template.stream_chat(
        [{"role": "user", "content": "z"}], temperature=0, max_tokens=12
    ) as stream:
        assert "".join(piece.text for piece in stream) == STORY
    assert stream.response.prompt == "<|begin|>z"


def test_concurrent_chats_equal_separate_chats(with_template):
    """Greedy chats and generations that run together have the same results as alone."""
    asks = [
        lambda n=n: with_template.chat([{"role": "user", "content": "abc"[: n + 1]}], seed=n)
        for n in range(3)
    ]
    alone = [ask().responses[0].text for ask in asks]
    with ThreadPoolExecutor(3) as pool:
        assert [
            future.result().responses[0].text for future in [pool.submit(ask) for ask in asks]
        ] == alone


def test_slow_rendering_does_not_block_the_runner(bigram, monkeypatch):
    """Other requests are served while a template runs to its time limit."""
    monkeypatch.setattr(renderer_for(None)._sandbox, "_timeout_s", 1)
    failed = []

    def overrun():
        with pytest.raises(InvalidRequestError) as caught:
            bigram.chat(HI, chat_template=LOOP)
        failed.append(caught.value)

    thread = threading.Thread(target=overrun)
    thread.start()
    n_served = 0
    while not failed:
        bigram.generate({"text": "a", "max_tokens": 5})
        n_served += 1
    thread.join()
    assert n_served > 5


def test_closed_runner_rejects_chat():
    """The error is that of other requests."""
    with Runner(BIGRAM, n_slots=1, n_ctx=64, n_threads=1) as runner:
        pass
    with pytest.raises(RunnerClosedError):
        runner.chat(HI, chat_template=PLAIN)


def test_bigram_vocabulary_starts_with_control_tokens_and_letters():
    """These tests rely on the letters after two control tokens."""
    assert BIGRAM_TOKENS[LETTER_A : LETTER_A + 2] == [b"a", b"b"]
    assert np.array_equal((BOS, END), (0, 1))


def test_return_token_texts_returns_the_bytes_of_all_tokens(with_template):
    """The response has the bytes of each of its tokens; those of the prompt join to its text."""
    asked = {
        "text": "z",
        "temperature": 0,
        "max_tokens": 12,
        "return_tokens": True,
        "top_logprobs": 3,
    }
    response = with_template.submit(asked, context=RequestContext(return_token_texts=True)).result()
    pieces = response.token_texts.pieces
    assert b"".join(pieces[token] for token in response.responses[0].tokens).decode() == STORY
    assert b"".join(pieces[token] for token in response.token_texts.prompt) == b"z"
    assert {
        one.token for top_logprob in response.responses[0].top_logprobs for one in top_logprob
    } <= set(pieces)
    assert pieces == {token: BIGRAM_TOKENS[token] for token in pieces}
    assert with_template.generate(asked).token_texts is None
    assert "token_texts" not in wire.unstructure(response)


def test_use_model_eos_ends_a_generation(with_template):
    """The model's own end token ends a generation in addition to the requested end tokens."""
    forced = {"text": "z", "logit_bias": {END: 100}, "max_tokens": 3, "eos_token_ids": [5]}
    (ended,) = (
        with_template.submit(forced, context=RequestContext(use_model_eos=True)).result().responses
    )
    (other,) = (
        with_template.submit(
            {**forced, "logit_bias": {5: 100}}, context=RequestContext(use_model_eos=True)
        )
        .result()
        .responses
    )
    (plain,) = with_template.submit(forced).result().responses
    assert [completion.finish_reason for completion in (ended, other, plain)] == [
        "eos",
        "eos",
        "length",
    ]


def test_submit_does_not_validate_a_request_again(with_template):
    """A request is validated when it is created, and not again on submission."""
    request = GenerationRequest("a", logit_bias=dict.fromkeys(range(4096), 1.0), max_tokens=1)
    started_s = time.thread_time()
    futures = [
        with_template.submit(
            request, context=RequestContext(use_model_eos=True, return_token_texts=True)
        )
        for _ in range(100)
    ]
    assert time.thread_time() - started_s < 0.5
    for future in futures:
        future.cancel()
