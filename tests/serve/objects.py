"""A real object store on this machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest

from tests.serve.harness import eventually

_SERVER = """
import threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

application, alone = DomainDispatcherApplication(create_backend_app), threading.Lock()

def one_at_a_time(environ, start_response):  # so that it compares and writes in one step, as S3 does
    with alone:
        return application(environ, start_response)

run_simple("127.0.0.1", 0, one_at_a_time, threaded=True)
"""


@contextmanager
def object_store() -> Iterator[subprocess.Popen[bytes]]:
    """Run an S3 server with a bucket, and configure this process and its children to use it."""
    with (
        tempfile.NamedTemporaryFile() as log,
        pytest.MonkeyPatch.context() as patch,
        subprocess.Popen([sys.executable, "-c", _SERVER], stderr=log, stdout=log) as server,
    ):
        try:
            assert eventually(lambda: "Running on http://127" in Path(log.name).read_text())
            match = re.search(r"http://127\.0\.0\.1:\d+", Path(log.name).read_text())
            patch.setenv("AWS_ENDPOINT_URL", match[0] if match else "")
            patch.setenv("AWS_ACCESS_KEY_ID", "a")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "b")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            fsspec.filesystem("s3").mkdir("corpora")
            yield server
        finally:
            server.kill()
            fsspec.filesystem("s3").clear_instance_cache()
