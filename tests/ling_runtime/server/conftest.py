"""A small byte-level tokenizer, servers over the scripted executor in this process, and servers behind a real port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

import ling_runtime
from ling_runtime.api.app import create_app
from ling_runtime.api.service import Service
from ling_runtime.arguments import ServerConfig
from ling_runtime.engine import Engine
from ling_runtime.server import Server, bind
from ling_runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from scripted import ScriptedExecutor

    from ling_runtime.executor.interface import Executor

CORPUS = [
    "Question: How many apples are there?\nAnswer: There are 12 apples.\n#### 12\n\n",
    "日本語のテキスト",
    "नमस्ते दुनिया",
    "😀👍🏽",
]
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with everything the server reads except weights."""
    directory = tmp_path_factory.mktemp("checkpoint")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=360,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|eos|>", "<|user|>", "<|assistant|>", "<|separator|>"],
        ),
    )
    backend.add_tokens([AddedToken("plain added", special=False)])
    backend.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eos|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    architecture = {"model_type": "bailing_hybrid", "architectures": ["BailingMoeV3ForCausalLM"]}
    (directory / "config.json").write_text(json.dumps(architecture))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1]}))
    return directory


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_pretrained(checkpoint)


@pytest.fixture(scope="session")
def backend(checkpoint: Path) -> Backend:
    """The tokenizers library itself, the reference for decoded text."""
    return Backend.from_file(str(checkpoint / "tokenizer.json"))


@pytest.fixture(scope="session")
def shipped() -> Path:
    """The checkpoint in the repository: a trained model and its tokenizer."""
    return Path(ling_runtime.__file__).parent / "checkpoints" / "ling_tiny"


@pytest.fixture(scope="session")
def shipped_tokenizer(shipped: Path) -> Tokenizer:
    return Tokenizer.from_pretrained(shipped)


@pytest.fixture(scope="session")
def says(tokenizer: Tokenizer) -> Callable[[str], Callable[[Sequence[int]], list[int]]]:
    """A script that answers every prompt with this text, over and over."""
    return lambda text: lambda _prompt: tokenizer.encode(text)


@pytest.fixture(scope="session")
def config(checkpoint: Path) -> ServerConfig:
    return ServerConfig(
        model_path=str(checkpoint), tokenizer_path=str(checkpoint), served_model_name="tiny", port=0, random_seed=7
    )


@pytest.fixture
def in_process(
    config: ServerConfig, tokenizer: Tokenizer
) -> Callable[[ScriptedExecutor], contextlib.AbstractAsyncContextManager[httpx.AsyncClient]]:
    """A client of the application without a socket."""

    @contextlib.asynccontextmanager
    async def connect(executor: ScriptedExecutor) -> AsyncIterator[httpx.AsyncClient]:
        engine = Engine(executor, tokenizer, max_running_requests=config.max_running_requests)
        app = create_app(Service(config, engine, tokenizer, {"model_type": "bailing_hybrid"}))
        transport = httpx.ASGITransport(app=app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://t") as c:
            yield c

    return connect


def _listening(config: ServerConfig, tokenizer: Tokenizer) -> Iterator[Callable[..., str]]:
    """Start a real server on a free port in a thread; gives its base URL. All end with the test, or the module."""
    servers: list[tuple[Server, threading.Thread]] = []

    def start(executor: Executor, tokenizer: Tokenizer = tokenizer) -> str:
        listener = bind(config)
        server = Server(config, Engine(executor, tokenizer, max_running_requests=8), tokenizer)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        servers.append((server, thread))
        deadline = time.monotonic() + 10
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        return base_url(listener)

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


listening = pytest.fixture(_listening, name="listening")
listening_on = pytest.fixture(_listening, name="listening_on", scope="module")
"""For tests that leave a server as they find it: an end costs uvicorn 0.1 s."""


def base_url(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"
