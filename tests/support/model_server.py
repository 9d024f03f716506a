"""A provider of models for tests: a real HTTP server with scripted answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def model(*answers: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """A real HTTP server that speaks as OpenAI's does and gives scripted answers; what it was sent, as text."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.answer({"object": "list", "data": [{"id": "small-model", "object": "model"}]})

        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            said = {"role": "assistant", "content": None, **answers[min(len(heard), len(answers)) - 1]}
            choice = {"index": 0, "message": said, "finish_reason": "tool_calls" if "tool_calls" in said else "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            about = {"id": "x", "object": "chat.completion", "created": 1, "model": "small-model"}
            self.answer({**about, "choices": [choice], "usage": usage})

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", heard
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
