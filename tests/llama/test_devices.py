"""Models on GPUs: the choice of devices, and generation on devices of llama.cpp's RPC backend."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.errors import InvalidRequestError
from relevance_gen.llama.context_size import MIN_N_CTX, ContextSize, next_smaller
from relevance_gen.llama.runtime import devices
from relevance_gen.llama.runtime.devices import Gpu, device_array, select_gpus
from tests.llama.rpc import (
    ROOT,
    DeviceServer,
    VulkanDriver,
    has_rpc,
    library_folder,
    run_with_devices,
    serve_devices,
)

needs_rpc = pytest.mark.skipif(not has_rpc(), reason="libggml-rpc.so is missing: .ci/build_rpc")

INTEGRATED = Gpu("Vulkan0", 16 << 30, 1, is_integrated=True, device_id="0000:00:02.0")
CARD = Gpu("Vulkan1", 8 << 30, 2, device_id="0000:01:00.0")
CARD_OF_CUDA = Gpu("CUDA0", 8 << 30, 3, device_id="0000:01:00.0")
REMOTE = Gpu("RPC0", 4 << 30, 4)


@pytest.fixture(scope="module")
def two_devices() -> Iterator[DeviceServer]:
    """A process that serves two devices."""
    with serve_devices(2) as server:
        yield server


@pytest.fixture(scope="module", params=["rpc", "vulkan"])
def device(request: pytest.FixtureRequest) -> DeviceServer | VulkanDriver:
    """The two RPC devices, and the first Vulkan device in `make test-vulkan`."""
    if request.param == "rpc":
        if not has_rpc():
            pytest.skip("libggml-rpc.so is missing: .ci/build_rpc")
        server: DeviceServer = request.getfixturevalue("two_devices")
        return server
    if "RELEVANCE_GEN_TEST_VULKAN" not in os.environ:
        pytest.skip("make test-vulkan runs this test, with Mesa's software driver for Vulkan")
    assert (library_folder() / "libggml-vulkan.so").exists()
    return VulkanDriver()


def offer(monkeypatch: pytest.MonkeyPatch, *offered: Gpu) -> None:
    """Let the backends offer these GPUs."""
    by_handle = {gpu.handle: gpu for gpu in offered}
    monkeypatch.setattr(devices, "_handles_of_gpus", lambda: list(by_handle))
    monkeypatch.setattr(devices, "_properties_of", by_handle.__getitem__)


# ── The choice ────────────────────────────────────────────────────────────────────────────────────


def test_discrete_gpus_precede_integrated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers mean discrete GPUs first; a model without `main_gpu` uses only these."""
    offer(monkeypatch, INTEGRATED, CARD, REMOTE)
    assert devices.gpus() == [CARD, REMOTE, INTEGRATED]
    assert select_gpus(None, None) == [CARD, REMOTE]
    assert select_gpus(3, 2) == [INTEGRATED]


def test_integrated_gpu_is_used_without_a_discrete_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a discrete GPU the integrated GPUs are used."""
    offer(monkeypatch, INTEGRATED)
    assert select_gpus(None, None) == [INTEGRATED]


def test_gpu_of_two_backends_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs with the same PCI id are one GPU; GPUs without an id are different."""
    offer(monkeypatch, CARD_OF_CUDA, CARD, REMOTE, Gpu("RPC1", 1, 5))
    assert [gpu.name for gpu in devices.gpus()] == ["CUDA0", "RPC0", "RPC1"]


def test_no_layers_select_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With n_gpu_layers=0 no GPU is selected, for any `main_gpu`."""
    offer(monkeypatch, CARD)
    assert select_gpus(0, 99) == []
    assert list(device_array([])) == [None]
    assert list(device_array([CARD])) == [CARD.handle, None]


def test_number_of_a_missing_gpu_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error lists the numbers and names of the GPUs."""
    offer(monkeypatch, INTEGRATED, CARD)
    with pytest.raises(InvalidRequestError, match="0 is Vulkan1, 1 is Vulkan0"):
        select_gpus(None, 2)


@given(st.integers(1, 1 << 20), st.integers(1, 255), st.booleans(), st.booleans())
def test_next_smaller_size_ends(
    n_ctx: int, n_slots: int, can_shorten: bool, can_reduce_slots: bool
) -> None:
    """Each size is smaller than the last, requested numbers are kept, and the sizes end."""
    size: ContextSize | None = ContextSize(n_ctx, n_slots)
    while size is not None:
        smaller = next_smaller(size, can_shorten=can_shorten, can_reduce_slots=can_reduce_slots)
        if smaller is not None:
            assert smaller.n_ctx * smaller.n_slots < size.n_ctx * size.n_slots
            assert can_shorten or smaller.n_ctx == n_ctx
            assert can_reduce_slots or smaller.n_slots == n_slots
            assert smaller.n_ctx >= min(n_ctx, MIN_N_CTX)
        size = smaller


# ── Devices of a second process ───────────────────────────────────────────────────────────────────


def results_of(printed: str) -> Any:
    """Parse the last line that a process printed."""
    return json.loads(printed.splitlines()[-1])


@needs_rpc
def test_properties_of_devices_are_read(two_devices: DeviceServer) -> None:
    """Names and free memory of the devices equal the values of ggml's other functions."""
    code = """
import json
listed = []
for gpu in gpus():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    device = ctypes.c_void_p(gpu.handle)
    lib._lib.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    listed.append([gpu.name, 0 < gpu.free_bytes <= total.value, gpu.is_integrated])
print(json.dumps(listed))
"""
    expected = [["RPC0", True, False], ["RPC1", True, False]]
    assert results_of(two_devices.run(code)) == expected


@needs_rpc
def test_model_uses_the_selected_devices(two_devices: DeviceServer) -> None:
    """The keys and values of a model are on all devices by default, on a single device with `main_gpu`, and on the CPU without layers."""
    code = """
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(message)s")
for options in ({}, {"main_gpu": 1}, {"n_gpu_layers": 0}):
    print("== load")
    Decoder(TINY, ModelOptions(n_ctx=256, n_slots=2, **options)).close()
"""
    _, both, second, none = two_devices.run(code).split("== load")
    assert "RPC0" in both
    assert "RPC1" in both
    assert "RPC0" not in second
    assert "RPC1" in second
    assert "RPC" not in none


@needs_rpc
def test_backend_without_devices_is_a_cpu() -> None:
    """A build with a GPU backend and without a GPU has the defaults of a CPU."""
    code = """
assert lib.llama_supports_gpu_offload()
with Decoder(TINY, ModelOptions(n_ctx=256, n_slots=2)) as model:
    print(model.n_batch, model.copies_on_device, model._weights.uses_gpu)
"""
    assert run_with_devices("", code) == "128 False False"


GENERATE = """
import json
def texts(**options):
    requests = [{"text": text, "max_tokens": 24, "temperature": 0} for text in ("Once", "a", "b c")]
    with Runner(TINY, n_ctx=256, n_slots=3, **options) as runner:
        futures = [runner.submit(request) for request in requests]
        return [future.result().responses[0].text for future in futures]
"""


@needs_rpc
@pytest.mark.parametrize("options", ["", "main_gpu=1", "n_gpu_layers=1", "devices=[0, 1]"])
def test_greedy_texts_equal_those_of_the_cpu(options: str, two_devices: DeviceServer) -> None:
    """Without flash attention, concurrent requests on devices have the texts of the CPU."""
    code = f"{GENERATE}print(json.dumps([texts(n_gpu_layers=0), texts(flash_attention=False, {options})]))"
    on_cpu, on_devices = results_of(two_devices.run(code))
    assert on_cpu == on_devices
    assert all(on_cpu)


def test_copies_on_the_device_have_the_same_bits(device: DeviceServer | VulkanDriver) -> None:
    """A copied slot computes the logits of the slot that it was copied from."""
    code = """
import numpy as np
options = ModelOptions(n_ctx=256, n_slots=2, main_gpu=0, flash_attention=False)
with Decoder(TINY, options) as model:
    assert model.copies_on_device
    tokens = np.arange(8, dtype=np.int32)
    model.prefill([0], [tokens], [0])
    model.copy(0, 1)
    first = model.decode([0], [5], [8])
    second = model.decode([1], [5], [8])
    print(bool((first == second).all()))
"""
    assert device.run(code) == "True"


def test_logits_of_a_whole_prompt_are_computed_in_parts(
    device: DeviceServer | VulkanDriver,
) -> None:
    """On a device the logits of a prompt are computed in parts of a row per slot, on RPC with the same bits for any part."""
    code = """
import numpy as np
tokens = np.arange(100, dtype=np.int32)
logits = []
for n_slots in (2, 9, 104):
    options = ModelOptions(n_ctx=256, n_slots=n_slots, main_gpu=0, flash_attention=False)
    with Decoder(TINY, options) as model:
        rows = [*model.prefill_all(1, tokens, 0), *model.decode([1], [5], [100])]
        logits.append(np.array(rows))
        print(model._max_outputs)
print(max(float(np.abs(part - logits[2]).max()) for part in logits[:2]))
"""
    *n_outputs, difference = device.run(code).split()
    assert n_outputs == ["8", "16", "104"]
    # Vulkan selects its kernels by the number of rows, and bits are promised on the CPU only.
    assert float(difference) <= (0 if isinstance(device, DeviceServer) else 1e-3), difference


def test_encoder_and_reranker_on_a_device_equal_the_cpu(
    device: DeviceServer | VulkanDriver,
) -> None:
    """Vectors and scores on a device differ from those on the CPU by less than 0.01."""
    code = """
import numpy as np
vectors, scores = [], []
for n_gpu_layers in (0, None):
    with Encoder(ENCODER, n_gpu_layers=n_gpu_layers) as encoder:
        vectors.append(encoder.encode(["cats purr"]))
    with Reranker(RERANKER, n_gpu_layers=n_gpu_layers) as reranker:
        scores.append(np.array(reranker.score("cats", ["cats purr", "dogs bark"])))
print(bool(np.abs(vectors[0] - vectors[1]).max() < 0.01), bool(np.abs(scores[0] - scores[1]).max() < 0.01))
"""
    assert device.run(code) == "True True"


@needs_rpc
def test_scarce_device_memory_makes_the_default_context_smaller() -> None:
    """If a default size cannot be allocated, smaller sizes are tried; a requested size is an error with a remedy."""
    code = """
from relevance_gen.errors import ModelLoadError
with Decoder(TINY, ModelOptions(flash_attention=False)) as model:
    assert model.n_ctx == 2048
    assert 1 <= model.n_slots < 16, model.n_slots
try:
    Decoder(TINY, ModelOptions(n_ctx=2048, n_slots=16, flash_attention=False))
except ModelLoadError as error:
    print("16 slots of 2048 tokens cannot be allocated" in str(error), "choose a smaller n_ctx" in str(error))
"""
    with serve_devices(
        1, max_bytes=26 << 20
    ) as server:  # 16 slots need more than 28 MiB, and a slot at most 24
        assert server.run(code) == "True True"


@needs_rpc
def test_killed_device_fails_its_requests_and_leaves_the_cpu() -> None:
    """If a device dies, all requests fail, and a model without GPU layers still works in the process."""
    code = f"""{GENERATE}
import os, signal
from relevance_gen.errors import RelevanceGenError
runner = Runner(TINY, n_ctx=256, n_slots=2)
request = {{"text": "a", "max_tokens": 200, "temperature": 0, "min_tokens": 200}}
runner.generate({{"text": "a", "max_tokens": 2}})
os.kill(int(sys.argv[2]), signal.SIGKILL)
failures = 0
for future in [runner.submit(request) for _ in range(3)]:
    try:
        future.result(60)
    except RelevanceGenError:
        failures += 1
print(failures, bool(texts(n_gpu_layers=0)[0]), flush=True)
os._exit(0)
"""
    with serve_devices() as server:
        assert server.run(code) == "3 True"


@needs_rpc
def test_killed_device_is_not_used_again() -> None:
    """After a device died, `Runner` with or without `devices` raises at once and names the remedy."""
    code = """
import os, signal
from relevance_gen.errors import ModelLoadError, RelevanceGenError
runner = Runner(TINY, n_ctx=256, n_slots=1)
os.kill(int(sys.argv[2]), signal.SIGKILL)
try:
    runner.generate({"text": "a", "max_tokens": 200, "min_tokens": 200})
except RelevanceGenError:
    pass
for devices in ([0], None):
    try:
        Runner(TINY, n_ctx=256, devices=devices)
    except ModelLoadError as error:
        print("restart the process" in str(error), flush=True)
os._exit(0)
"""
    with serve_devices() as server:
        assert server.run(code).split() == ["True", "True"]


@needs_rpc
def test_device_memory_is_freed_after_each_model() -> None:
    """After ten loads and generations the memory of the device process equals that after five, within 8 MiB."""
    code = f"""{GENERATE}
def device_bytes():
    pages = open(f"/proc/{{sys.argv[2]}}/statm").read().split()[1]
    return int(pages) * 4096
sizes = []
for _ in range(10):
    texts()
    sizes.append(device_bytes())
print(sizes[-1] - sizes[4])
"""
    with serve_devices() as server:
        assert int(server.run(code)) < 8 << 20


# ── Lost devices ──────────────────────────────────────────────────────────────────────────────────

UNCAUGHT = """
import ctypes, os, sys, threading
from relevance_gen.errors import ModelLoadError
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime import aborts, devices, library
from small_models import TINY

terminate = ctypes.CDLL("libstdc++.so.6")["_ZSt9terminatev"]
reported = []

def compute():
    with aborts.guard(reported.append):
        terminate()
"""
"""`compute` ends like a backend that throws a C++ exception: nothing catches it."""


@pytest.mark.skipif(sys.platform != "linux", reason="libstdc++ is of Linux")
def test_uncaught_exception_of_a_backend_loses_only_its_thread() -> None:
    """The thread's handler gets the reason, the process lives, GPUs are refused, and the CPU works."""
    code = f"""{UNCAUGHT}
threading.Thread(target=compute, daemon=True).start()
while not reported:
    pass
with Decoder(TINY, ModelOptions(n_ctx=256, n_slots=1, n_gpu_layers=0)):
    print(reported[0])
devices._handles_of_gpus = lambda: [1]
devices._properties_of = None  # is not called
try:
    Decoder(TINY, ModelOptions(n_ctx=256, n_slots=1))
except ModelLoadError as error:
    print(error, flush=True)
os._exit(0)
"""
    completed = run_script(code)
    assert completed.returncode == 0, completed.stderr
    reason, refused = completed.stdout.splitlines()
    assert reason == "a C++ exception was not caught, for example because a GPU was lost"
    assert refused.startswith("llama.cpp has lost a GPU in this process")
    assert "restart the process, or keep the model on the CPU with n_gpu_layers=0" in refused


@pytest.mark.skipif(sys.platform != "linux", reason="libstdc++ is of Linux")
def test_uncaught_exception_of_another_library_ends_the_process() -> None:
    """A thread that computes no model is not kept alive."""
    completed = run_script(f"{UNCAUGHT}\nprint('alive', flush=True)\nterminate()\n")
    assert completed.returncode == -signal.SIGABRT
    assert completed.stdout == "alive\n"


def run_script(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GGML_NO_BACKTRACE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
