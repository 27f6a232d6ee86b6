"""Turn a conversation into a prompt, as the model's own template writes it."""

from __future__ import annotations

import atexit
import functools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.queue.request import ANONYMOUS
from relevance_gen.llama.language_model import TOKEN_BOUNDARY, ChatFormat
from relevance_gen.sandbox import Sandbox

_PROGRAM = Path(__file__).with_name("template_program.py")
_MEMORY_BYTES = 1 << 30
_MAX_CHARACTERS = 1 << 24
"""Most characters of a template, and of a conversation written as JSON."""
_TOO_LONG = object()
_SEEN = "\udc02"
"""Stands around the marks of messages: a further one."""
_END = "\udc01"
"""Stands behind a message that is to be continued: another code point that no text can hold."""
_NO_VARIABLES: Mapping[str, Any] = {}
_MARKER = re.compile(r"[<\[{|].*[>\]}|]")
_ELEMENT = re.compile(r"</?[a-z][a-z0-9]*/?>")
_FIELDS = {"template": "chat_template", "messages": "messages", "limit": "chat_template"}


class Renderer:
    """Renders templates in a sandbox, each conversation within `timeout_s` seconds."""

    def __init__(self, timeout_s: float = 5.0) -> None:
        self._timeout_s = timeout_s
        self._sandbox = Sandbox(_PROGRAM, timeout_s=timeout_s, memory_bytes=_MEMORY_BYTES)
        self.close = self._sandbox.close

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Return what `template` makes of `variables`, which JSON can hold.

        Raises:
            InvalidRequestError: the template is wrong, refuses the messages, or takes too much time or memory.
            GenerationError: the sandbox cannot be started.
        """
        return str(self._ask(template, variables)["text"])

    def variables_of(self, template: str) -> list[str]:
        """Return the names of the variables that `template` reads; it raises what `render` raises."""
        return list(self._ask(template, None)["names"])

    def _ask(self, template: str, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            reply = self._sandbox.call({"template": template, "variables": variables})
        except TimeoutError:
            raise _refused(f"must be rendered within {self._timeout_s:g} seconds") from None
        except EOFError:
            raise _refused("must not end the process that renders it") from None
        if "error" not in reply:
            return reply
        field = _FIELDS[reply["kind"]]
        wrong = "do not fit the chat template" if field == "messages" else "cannot be rendered"
        raise InvalidRequestError(f"{wrong}: {reply['error'][:500]}", field)


def _refused(why: str) -> InvalidRequestError:
    return InvalidRequestError(why, "chat_template")


_renderers = {is_anonymous: Renderer() for is_anonymous in (True, False)}
for _one in _renderers.values():
    atexit.register(_one.close)


def renderer_for(client: str | None) -> Renderer:
    """Return where the conversations of a client are rendered, named as in a `QueuedRequest`: not where strangers' are."""
    return _renderers[client == ANONYMOUS]


def prompt_of(
    messages: Sequence[Mapping[str, Any]],
    model: ChatFormat,
    chat_template: str | None = None,
    variables: Mapping[str, Any] = _NO_VARIABLES,
    *,
    continues: bool = False,
    renderer: Renderer = _renderers[False],
) -> str:
    """Return the prompt that `messages` make, ready for the model's next turn.

    It is for `LanguageModel.tokenize_chat` alone: where a message holds the text of a token that a template can give a
    meaning to, that text is broken by `TOKEN_BOUNDARY`, so that it stays text, in whatever order the template writes messages.
    Nobody who is quoted in a message, no user, no tool and no document, can end their turn or speak as somebody else.
    These are all control tokens, and all others that are looked for in a text as a whole and stand in the template, or
    read like a marker. In the model's own turns, what the template itself looks for is left whole, as ``</think>``.

    Args:
        messages: objects with a ``role`` and whatever else the template reads, ``content`` above all.
        model: what its file says about conversations.
        chat_template: instead of the one in the file.
        variables: what else the template reads, such as ``tools``; they go before what this function sets.
        continues: whether the last message is to be continued, in place of a next turn.
        renderer: where it is rendered.

    Raises:
        InvalidRequestError: there is no template, it is wrong, refuses the messages, or takes too much time or memory.
    """
    template = model.template if chat_template is None else chat_template
    if template is None:
        raise _refused(
            "is required: the model's file has none, so it may not be made for conversations"
        )
    if not isinstance(template, str) or len(template) > _MAX_CHARACTERS:
        raise InvalidRequestError.must_be(
            "chat_template", f"a string of at most {_MAX_CHARACTERS:,} characters", chat_template
        )
    check_messages(messages, continues=continues)
    if not isinstance(variables, Mapping):
        raise InvalidRequestError.must_be("template_variables", "an object", variables)
    quoted, own = _token_texts(model.control, model.user_defined, template)

    def as_said(messages: list[Any]) -> list[Any]:
        said = [
            _broken_turn(message, own if message["role"] == "assistant" else quoted, quoted)
            for message in messages
        ]
        if continues:
            said[-1]["content"] += _END
        return said

    given = {"bos_token": model.bos, "eos_token": model.eos, "add_generation_prompt": not continues}
    given |= _as_plain_text(
        dict(variables), "template_variables", lambda value: _broken(value, quoted)
    )
    said = _as_plain_text(list(messages), "messages", as_said)

    def write(messages: Sequence[Mapping[str, Any]]) -> str:
        return renderer.render(template, {"messages": messages, **given})

    text = write(said)
    if left_out := _left_out(said, write):
        text = write(_said_by_users(said, left_out))
    if not continues:
        return text
    begun, mark, _ = text.rpartition(_END)
    if not mark:
        raise InvalidRequestError(
            "do not fit the chat template: it does not write the last one as it is", "messages"
        )
    return begun


def _left_out(
    messages: Sequence[Mapping[str, Any]], write: Callable[[Sequence[Mapping[str, Any]]], str]
) -> list[int]:
    """Return the places of what systems say that a template does not write: it is tried with a mark in each message."""
    marks = {at: f"{_SEEN}{at}{_SEEN}" for at, one in enumerate(messages) if _is_system(one)}
    if not marks:
        return []
    text = write(
        [_marked(one, marks[at]) if at in marks else one for at, one in enumerate(messages)]
    )
    return [at for at, mark in marks.items() if mark not in text]


def said_in(message: Mapping[str, Any]) -> list[str]:
    """Return what a message says, in parts."""
    content = message.get("content")
    texts = [content]
    if isinstance(content, list | tuple):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


def _is_system(message: Mapping[str, Any]) -> bool:
    """Tell whether a message is a system's that says something, and not the one to be continued."""
    said = "".join(said_in(message))
    return message["role"] == "system" and bool(said.strip()) and not said.endswith(_END)


def _marked(message: Mapping[str, Any], mark: str) -> Mapping[str, Any]:
    """Put a mark behind each text of a message."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + mark}
    is_text = [isinstance(part, dict) and isinstance(part.get("text"), str) for part in content]
    parts = zip(content, is_text, strict=True)
    return {
        **message,
        "content": [
            {**part, "text": part["text"] + mark} if text else part for part, text in parts
        ],
    }


def _said_by_users(
    messages: Sequence[Mapping[str, Any]], places: Sequence[int]
) -> list[Mapping[str, Any]]:
    """Put what some messages say in front of what the next user says, or behind the last one where none follows."""
    users = [
        at
        for at, one in enumerate(messages)
        if one["role"] == "user" and isinstance(one.get("content"), str | list)
    ]
    before: defaultdict[int, str] = defaultdict(str)
    behind: defaultdict[int, str] = defaultdict(str)
    for place in places:
        text = "\n".join(said_in(messages[place]))
        if not users:
            why = "is left out by the chat template, and there is no user's message that could hold it"
            raise InvalidRequestError(why, f"messages[{place}]", remedy="say it as a user")
        if place < users[-1]:
            before[next(user for user in users if user > place)] += f"{text}\n\n"
        else:
            behind[users[-1]] += f"\n\n{text}"
    return [
        {**one, "content": _between(before[at], one["content"], behind[at])} if at in users else one
        for at, one in enumerate(messages)
        if at not in places
    ]


def _between(before: str, content: Any, behind: str) -> Any:
    if isinstance(content, str):
        return before + content + behind
    first, last = ([{"type": "text", "text": text}] if text else [] for text in (before, behind))
    return [*first, *content, *last]


def check_messages(messages: object, *, continues: bool) -> None:
    """Refuse what is no list of objects with a role, or whose last cannot be continued where it is to be."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InvalidRequestError.must_be("messages", "a list of at least one message", messages)
    for position, message in enumerate(messages):
        name = f"messages[{position}]"
        if not isinstance(message, Mapping):
            raise InvalidRequestError.must_be(name, "an object with a role and a content", message)
        if not isinstance(message.get("role"), str):
            raise InvalidRequestError.must_be(f"{name}.role", "a string", message.get("role"))
    if continues and not isinstance(message.get("content"), str):
        raise InvalidRequestError.must_be(f"{name}.content", "a string", message.get("content"))


def _as_plain_text(value: Any, name: str, broken: Callable[[Any], Any]) -> Any:
    """Copy what JSON can hold, with the texts of tokens `broken`."""
    try:
        written = json.dumps(value, ensure_ascii=False)
        copy = broken(json.loads(written)) if len(written) <= _MAX_CHARACTERS else _TOO_LONG
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"must hold what JSON can: {error}", name) from None
    if copy is _TOO_LONG:
        raise InvalidRequestError(f"must hold at most {_MAX_CHARACTERS:,} characters as JSON", name)
    return copy


def _broken_turn(
    message: dict[str, Any], texts: _ControlTexts, quoted: _ControlTexts
) -> dict[str, Any]:
    """Break a message's texts; the arguments of calls repeat what others have said."""
    calls = (
        {"tool_calls": _broken(message["tool_calls"], quoted)} if "tool_calls" in message else {}
    )
    return {
        **_broken({name: value for name, value in message.items() if name not in calls}, texts),
        **calls,
    }


def _broken(value: Any, texts: _ControlTexts) -> Any:
    match value:
        case str():
            return texts.broken(
                value.encode(errors="replace").decode()
            )  # no lone surrogate, as `TOKEN_BOUNDARY` is one
        case list():
            return [_broken(item, texts) for item in value]
        case dict():
            return {_broken(key, texts): _broken(item, texts) for key, item in value.items()}
        case _:
            return value


@functools.lru_cache(maxsize=8)
def _token_texts(
    control: tuple[str, ...], user_defined: tuple[str, ...], template: str
) -> tuple[_ControlTexts, _ControlTexts]:
    """Return what is broken in the messages of all others, and in the model's own."""
    meant = [text for text in user_defined if _may_be_meant(text, template)]
    kept = [text for text in meant if _is_looked_for(text, template)]
    return _ControlTexts((*control, *meant)), _ControlTexts(
        (*control, *(text for text in meant if text not in kept))
    )


def _may_be_meant(text: str, template: str) -> bool:
    """Tell whether a template may give a meaning to a token: not to white space, to words or to HTML's elements."""
    if not text.strip() or text.isalnum():
        return False
    return text in template or (
        _MARKER.fullmatch(text) is not None and not _ELEMENT.fullmatch(text)
    )


def _is_looked_for(text: str, template: str) -> bool:
    """Tell whether a template looks for a text in messages."""
    quoted = rf"""(['"])[^'"]*{re.escape(text)}[^'"]*"""
    return (
        re.search(rf"{quoted}\1\s*(not\s+)?in\b|(split|find|replace|with)\(\s*{quoted}", template)
        is not None
    )


class _ControlTexts:
    """The texts of tokens that nobody may write: finds them in what somebody says."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        told = [text for text in texts if len(text) > 1]
        rests: defaultdict[str, list[str]] = defaultdict(list)
        for text in told:
            rests[text[0]].append(re.escape(text[1:]))
        starts = [f"{re.escape(first)}(?={'|'.join(others)})" for first, others in rests.items()]
        self._pattern = re.compile("|".join(starts) or r"(?!)")
        self._beginnings = {text[:n] for text in told for n in range(1, len(text))}
        self._longest = max(map(len, told), default=0)

    def broken(self, text: str) -> str:
        """Put a `TOKEN_BOUNDARY` into each of them, and behind a beginning of one that the next message could complete.

        It stands behind the first character, so that those inside another, or across its end, are broken, too.
        """
        text = self._pattern.sub(rf"\g<0>{TOKEN_BOUNDARY}", text)
        said = text.rstrip()  # templates do so too
        if any(said[-n:] in self._beginnings for n in range(1, min(self._longest, len(said) + 1))):
            return said + TOKEN_BOUNDARY + text[len(said) :]
        return text
