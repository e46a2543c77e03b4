"""One server of the bench: ``product`` or ``constant``, on a port of the loopback."""

from __future__ import annotations

import os
import sys
from typing import Any

import uvicorn


def constant(body: bytes) -> Any:
    """The same bytes to everybody: what the server stack alone can do."""
    headers = [
        (b"cache-control", b"no-store"),
        (b"content-length", str(len(body)).encode()),
        (b"content-type", b"application/json"),
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def product() -> Any:
    """What ``ckptgov serve --no-auth`` answers with."""
    from ckptgov.model.clock import SystemClock
    from ckptgov.service.app import create_app
    from ckptgov.service.metrics import Metrics
    from ckptgov.service.serving import Serving

    serving = Serving.open(os.environ["CKPTGOV_HOME"], clock=SystemClock(), is_open=True)
    metrics = Metrics(serving)
    return metrics.requests.around(create_app(serving, metrics=metrics))


def main(argv: list[str]) -> None:
    """Serve until told to stop."""
    what, port = argv
    app = product() if what == "product" else constant(os.environ["CONSTANT"].encode())
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(port),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on" if what == "product" else "off",
        backlog=2048,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
