"""Several models in one server: requests select a model, which is loaded on demand, without affecting other models."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from relevance_gen import Runner
from small_models import BIGRAM, ENCODER, TINY
from tests.serve.harness import (
    JSON,
    KEYED,
    REAL,
    SCRIPTED,
    Answer,
    Held,
    Server,
    eventually,
    refused_start,
)

BOTH = (
    "--model",
    f"tiny={TINY}",
    "--model",
    f"bigram={BIGRAM}",
    "--n-ctx",
    "256",
    "--n-slots",
    "4",
    "--n-threads",
    "1",
)
GREEDY = {"text": "A quick brown fox", "temperature": 0, "max_tokens": 8}


def state(server: Server, name: str) -> str:
    """Return the state in which a model is."""
    found: dict[str, Any] = server.call("GET", f"/v1/models/{name}").json
    return str(found["status"]["value"])


def generated(answer: Answer) -> str:
    """Return the text that was generated."""
    assert answer.status == 200, answer.body
    return str(answer.json["responses"][0]["text"])


ENCODERS = ("--encoder", f"small={ENCODER}", "--encoder", f"other={ENCODER}")


@pytest.fixture(scope="module")
def several() -> Iterator[Server]:
    """A server with two models and two encoders."""
    with Server(*BOTH, *ENCODERS, "--rate-limit", "off", program=REAL) as server:
        yield server


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """The output of each model."""
    written = {}
    for name, path in (("tiny", TINY), ("bigram", BIGRAM)):
        with Runner(path, n_ctx=256, n_slots=4, n_threads=1) as runner:
            written[name] = runner.generate(GREEDY).responses[0].text
    assert written["tiny"] != written["bigram"]
    return written


def test_single_model_accepts_any_name(alone: dict[str, str], real: Server) -> None:
    """A server of one model takes whatever name a client gives it."""
    assert generated(real.generate({**GREEDY, "model": "anything"})) == alone["tiny"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_requests_name_their_model(workers: str, several: Server, alone: dict[str, str]) -> None:
    """Each model generates the same text as alone, in every API format; without a name the first model is used."""
    own = (
        Server(*BOTH, *ENCODERS, "--workers", workers, "--rate-limit", "off", program=REAL)
        if workers > "1"
        else None
    )
    with own or nullcontext(several) as server:
        n_before = server.metric('model_requests_total{task="generate",model="bigram"}')
        for name in ("tiny", "bigram", "relevance_gen", None):
            expected = alone["tiny" if name in (None, "relevance_gen") else str(name)]
            assert generated(server.generate({**GREEDY, "model": name})) == expected
        for name, text in alone.items():
            body = {"model": name, "prompt": GREEDY["text"], "temperature": 0, "max_tokens": 8}
            answer = server.call("POST", "/v1/completions", body, JSON)
            assert (answer.json["model"], answer.json["choices"][0]["text"]) == (name, text)
        vectors = [
            server.call("POST", "/v1/embeddings", {"model": name, "input": "a cat"}, KEYED).json[
                "data"
            ]
            for name in ("small", "other")
        ]
        assert vectors[0] == vectors[1]
        listed = server.call("GET", "/v1/models").json["data"]
        assert [(one["id"], one["task"]) for one in listed] == [
            ("tiny", "generate"),
            ("bigram", "generate"),
            ("small", "embed"),
            ("other", "embed"),
        ]
        assert [state(server, name) for name in ("tiny", "bigram")] == ["loaded", "loaded"]
        assert server.metric('models{task="generate",model="bigram",state="loaded"}') == 1
        assert server.metric('model_requests_total{task="generate",model="bigram"}') == n_before + 2


def test_unknown_model_is_404_in_client_format(several: Server) -> None:
    """With several models an unknown name is a 404 on every path, with the nearest name; no model is loaded for it."""
    n_before = asked_for(several)
    says = "model must be a model that this server has, got 'tinny'; did you mean tiny?"
    assert several.generate({**GREEDY, "model": "tinny"}).error == {
        "type": "model_not_found",
        "message": says,
        "field": "model",
    }
    messages = [{"role": "user", "content": "x"}]
    for path, body, kind in (
        ("/v1/completions", {"prompt": "x"}, "model_not_found"),
        ("/v1/chat/completions", {"messages": messages}, "model_not_found"),
        ("/v1/responses", {"input": "x"}, "model_not_found"),
        ("/v1/messages", {"messages": messages, "max_tokens": 1}, "not_found_error"),
        ("/v1/messages/count_tokens", {"messages": messages}, "not_found_error"),
    ):
        answer = several.call("POST", path, {**body, "model": "tinny"}, KEYED)
        assert (answer.status, answer.json["error"]["type"], answer.json["error"]["message"]) == (
            404,
            kind,
            says,
        )
    answer = several.call("POST", "/v1/embeddings", {"model": "tiny", "input": "x"}, KEYED)
    assert (answer.status, answer.json["error"]["code"]) == (404, "model_not_found")
    refused = several.generate({**GREEDY, "model": 3})
    assert (refused.status, refused.error["field"]) == (400, "model")
    assert asked_for(several) == n_before
    searched = several.call(
        "POST", "/prompt", {"question": "x", "chunk_txts": ["x"], "model": "tinny"}, KEYED
    )
    assert (searched.status, searched.error["message"]) == (404, says)


def asked_for(server: Server) -> list[float]:
    """Return how often each model and each encoder was asked for."""
    models = [("generate", "tiny"), ("generate", "bigram"), ("embed", "small"), ("embed", "other")]
    return [
        server.metric(f'model_requests_total{{task="{task}",model="{name}"}}')
        for task, name in models
    ]


def test_prompt_request_has_model_name(several: Server) -> None:
    """The request of `/prompt` contains the name of the model, and can be posted unchanged."""
    n_before = asked_for(several)[1]
    asked = {"question": "what?", "chunk_txts": ["what is this"], "model": "bigram"}
    written = several.call("POST", "/prompt", asked, KEYED).json
    assert written["request"]["model"] == "bigram"
    assert generated(several.call("POST", written["path"], written["request"], JSON)) is not None
    assert asked_for(several)[1] == n_before + 2


def test_models_are_unloaded_when_idle_and_loaded_again() -> None:
    """Health and stats include unloaded models; a model generates the same text after it was unloaded."""
    with Server(*BOTH, "--model-idle-s", "0.2", "--rate-limit", "off", program=REAL) as server:
        first = generated(server.generate({**GREEDY, "model": "bigram"}))
        assert eventually(lambda: {state(server, "tiny"), state(server, "bigram")} == {"unloaded"})
        assert server.call("GET", "/health").status == 200
        assert server.stats() == {"backlog": 0, "num_total_runners": 2}
        assert generated(server.generate({**GREEDY, "model": "bigram"})) == first
        assert server.metric('model_load_seconds_count{task="generate",model="bigram"}') == 2
        assert server.end()
        assert server.process.returncode == 0


def test_models_are_evicted_within_model_bytes() -> None:
    """Requests for models that do not fit together are all answered, each by its own."""
    room = str(max(TINY.stat().st_size, BIGRAM.stat().st_size))
    with (
        Server(*BOTH, "--model-bytes", room, "--rate-limit", "off", program=REAL) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        alone = {
            name: generated(server.generate({**GREEDY, "model": name}))
            for name in ("tiny", "bigram")
        }
        names = ["tiny", "bigram"] * 8
        answers = pool.map(lambda name: server.generate({**GREEDY, "model": name}), names)
        assert [generated(answer) for answer in answers] == [alone[name] for name in names]
        assert {state(server, "tiny"), state(server, "bigram")} <= {"loaded", "unloaded"}
        assert sum(state(server, name) == "loaded" for name in alone) <= 1


def test_slow_load_does_not_delay_other_models() -> None:
    """Other models answer meanwhile; two waiting requests get the model together; a disconnect affects neither."""
    with Held() as loading, ThreadPoolExecutor(2) as pool:
        flags = ("--model", "quick=fast", "--model", f"slow={loading.words}", "--rate-limit", "off")
        with Server(*flags, program=SCRIPTED) as server:
            asked = {"text": "x", "max_tokens": 1, "model": "slow"}
            with pytest.raises(TimeoutError):
                server.generate(asked, timeout_s=0.5)
            waiting = [pool.submit(server.generate, asked) for _ in range(2)]
            assert state(server, "slow") == "loading"
            for _ in range(5):
                assert server.generate({**asked, "model": "quick"}).status == 200
            loading.let_go()
            assert [future.result().status for future in waiting] == [200, 200]
            assert server.metric('model_load_seconds_count{task="generate",model="slow"}') == 1


def test_failed_load_does_not_affect_other_models(tmp_path: Path) -> None:
    """Requests for the damaged model get the reason without its path; the server is ready with the second model."""
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(TINY.read_bytes()[:1000])
    with Server("--model", f"bad={damaged}", *BOTH, "--rate-limit", "off", program=REAL) as server:
        answer = server.generate({**GREEDY, "model": "bad"})
        assert (answer.status, answer.error["type"]) == (503, "no_runner")
        assert answer.error["message"].startswith(
            "the model cannot be loaded: bad cannot be loaded: "
        )
        assert str(tmp_path) not in answer.error["message"]
        assert int(answer.headers["Retry-After"]) >= 1
        assert state(server, "bad") == "failed"
        assert server.call("GET", "/health").status == 503
        assert generated(server.generate({**GREEDY, "model": "bigram"}))
        assert server.call("GET", "/health").status == 200


def test_shutdown_during_model_load_rejects_requests() -> None:
    """Waiting requests are rejected because the server ends, and the server ends."""
    with Held() as loading, ThreadPoolExecutor(1) as pool:
        flags = (
            "--model",
            "quick=fast",
            "--model",
            f"slow={loading.words}",
            "--drain-timeout-s",
            "0.2",
        )
        with Server(*flags) as server:
            waiting = pool.submit(server.generate, {"text": "x", "model": "slow"})
            assert eventually(lambda: state(server, "slow") == "loading")
            assert server.end()
            assert server.process.returncode == 0
            assert (waiting.result().status, waiting.result().error["type"]) == (503, "draining")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--model", f"a={TINY}", "--model", f"a={BIGRAM}"),
            "--model must give each model a different name, got a more than once",
        ),
        (("--model", str(TINY), "--model", "none"), "--model none must stand alone"),
        (
            ("--model", f"a={TINY}", "--model", f"b={BIGRAM}", "--cluster", "auto"),
            "--cluster keeps one --model loaded",
        ),
        (
            ("--cluster", "auto", "--devices", "0"),
            "--devices cannot be used with --cluster",
        ),
        (("--model-bytes", "10"), "--model-bytes must be at least"),
        (
            ("--model", "owner/name", "--model-bytes", "10"),
            "owner/name must be a local file if --model-bytes is set",
        ),
        (("--model", "a=/no/such.gguf"), "/no/such.gguf does not exist"),
        (("--model-bytes", "0"), "--model-bytes must be an integer of at least 1"),
    ],
)
def test_invalid_models_are_rejected_at_start(
    flags: tuple[str, ...], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A single line with the problem, and status 2."""
    assert refused_start(*flags) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert says in line
