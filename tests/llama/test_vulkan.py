"""Models on a Vulkan device, by `make test-vulkan`; `test_devices` runs further tests on it."""

from __future__ import annotations

import json
import os

import pytest

from tests.llama.rpc import VulkanDriver, library_folder

pytestmark = pytest.mark.skipif(
    "RELEVANCE_GEN_TEST_VULKAN" not in os.environ,
    reason="make test-vulkan runs these tests, with Mesa's software driver for Vulkan",
)


@pytest.fixture
def vulkan() -> VulkanDriver:
    """The first Vulkan device."""
    assert (library_folder() / "libggml-vulkan.so").exists()
    return VulkanDriver()


def test_gpus_lists_the_device(vulkan: VulkanDriver) -> None:
    """The device has the name and the free memory that ggml reports."""
    code = """
(gpu,) = gpus()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
lib._lib.ggml_backend_dev_memory(ctypes.c_void_p(gpu.handle), ctypes.byref(free), ctypes.byref(total))
print(gpu.name, 0 < gpu.free_bytes <= total.value)
"""
    assert vulkan.run(code).splitlines()[-1] == "Vulkan0 True"


def test_layers_are_on_the_device_or_on_the_cpu(vulkan: VulkanDriver) -> None:
    """Keys and values are on the device by default, and the device is not opened with ``n_gpu_layers=0``."""
    code = """
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(message)s")
for options in ({}, {"n_gpu_layers": 0}):
    print("== load")
    Decoder(TINY, ModelOptions(n_ctx=256, n_slots=2, **options)).close()
"""
    _, on_device, on_cpu = vulkan.run(code).split("== load")
    assert "Vulkan0" in on_device
    assert "Vulkan" not in on_cpu


@pytest.mark.parametrize("options", ["", "main_gpu=0", "n_gpu_layers=2", "devices=[0]"])
def test_greedy_text_of_the_embedded_model_equals_that_of_the_cpu(
    vulkan: VulkanDriver, options: str
) -> None:
    """Concurrent greedy requests have the texts of the CPU, although their logits differ by up to about 0.1."""
    code = f"""
import json
def texts(**options):
    prompts = ["The ferry leaves at", "Bees tell each other"]
    with Runner(n_ctx=256, n_slots=2, **options) as runner:
        futures = [runner.submit(text, max_tokens=8, temperature=0) for text in prompts]
        return [future.result().responses[0].text for future in futures]
print(json.dumps([texts(n_gpu_layers=0), texts({options})]))
"""
    on_cpu, on_device = json.loads(vulkan.run(code).splitlines()[-1])
    assert on_cpu == on_device
    assert all(on_cpu)


def test_memory_is_freed_after_each_model(vulkan: VulkanDriver) -> None:
    """After ten loads and generations the memory of the process equals that after five, within 16 MiB."""
    code = """
def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
sizes = []
for _ in range(10):
    with Runner(TINY, n_ctx=256, n_slots=2) as runner:
        runner.generate("a", max_tokens=4)
    sizes.append(resident_bytes())
print(sizes[-1] - sizes[4])
"""
    assert int(vulkan.run(code).splitlines()[-1]) < 16 << 20
