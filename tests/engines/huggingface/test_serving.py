"""The managers of `transformers serve` by themselves: ids that go along to a thread, and fail-fast."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.cli.serving import transcription, utils

import nanwatch
from nanwatch.engines.huggingface import serving
from nanwatch.engines.seams import MissingSeamError
from nanwatch.request_scope import current_scope
from nanwatch.settings import SettingsError
from tests.engines.huggingface import model_folder
from tests.engines.huggingface.batches import quick_collections, settings, wishes
from tests.engines.written import Written
from tests.seen import read

SPARK, CLEAN = [5, 6, model_folder.SPARK], [5, 6, 7]


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> Any:
    """GenerateManager with the ids going along, as it was again after the test."""
    manager = utils.GenerateManager
    for name in ("generate_streaming", "generate_non_streaming", "submit", "async_submit"):
        monkeypatch.setattr(manager, name, getattr(manager, name))
    monkeypatch.setattr(utils.GenerationState, "__init__", utils.GenerationState.__init__)
    handler = transcription.TranscriptionHandler
    monkeypatch.setattr(handler, "handle_request", handler.handle_request)
    serving.attach(utils)
    serving.attach_transcription(transcription)
    return manager


class SaysItsScope:
    """Stands for a model: what it generates is the ids that its thread knows."""

    device = "cpu"

    def __init__(self) -> None:
        self.seen: list[list[str] | None] = []

    def generate(self, *_: Any, **__: Any) -> Any:
        scope = current_scope()
        self.seen.append(None if scope is None else scope.ids)
        raise RuntimeError("said")


def generate(manager: Any, model: Any, request_id: str) -> Any:
    inputs = {"input_ids": SimpleNamespace(shape=(1, 3))}
    return manager.generate_non_streaming(model, None, inputs, None, request_id=request_id)


def test_each_request_takes_its_id_along_to_the_thread_that_generates(attached: Any) -> None:
    model = SaysItsScope()

    async def three() -> None:
        manager = attached()
        answers = [generate(manager, model, name) for name in ("x", "y", "z")]
        await asyncio.gather(*answers, return_exceptions=True)

    asyncio.run(three())
    assert sorted(model.seen, key=str) == [["x"], ["y"], ["z"]]


def test_work_that_no_request_ordered_has_no_id(attached: Any) -> None:
    model = SaysItsScope()
    with pytest.raises(RuntimeError, match="said"):
        attached().submit(model.generate).result(timeout=30)
    assert model.seen == [None]


def test_a_transcription_is_named_by_its_http_request(attached: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SaysItsScope()

    async def handle(_self: Any, request: Any) -> None:
        await attached().async_submit(model.generate)

    monkeypatch.setattr(transcription.TranscriptionHandler, "handle_request", handle)
    serving.attach_transcription(transcription)
    handler = transcription.TranscriptionHandler.__new__(transcription.TranscriptionHandler)
    request: Any = SimpleNamespace(state=SimpleNamespace(request_id="spoken"))
    with pytest.raises(RuntimeError, match="said"):
        asyncio.run(handler.handle_request(request))
    assert model.seen == [["spoken"]]


def test_attaching_twice_changes_nothing_more(attached: Any) -> None:
    before = (attached.submit, attached.generate_streaming, transcription.TranscriptionHandler.handle_request)
    serving.attach(utils)
    serving.attach_transcription(transcription)
    assert before == (
        attached.submit,
        attached.generate_streaming,
        transcription.TranscriptionHandler.handle_request,
    )


@pytest.mark.parametrize("name", ["generate_streaming", "generate_non_streaming", "submit", "async_submit"])
def test_a_missing_seam_is_named(name: str) -> None:
    def takes(request_id: str, fn: Callable[[], None]) -> None: ...

    names = {"generate_streaming", "generate_non_streaming", "submit", "async_submit"} - {name}
    manager = SimpleNamespace(**dict.fromkeys(names, takes))
    with pytest.raises(MissingSeamError, match=f"has no {name}"):
        serving.attach(SimpleNamespace(GenerateManager=manager))  # type: ignore[arg-type]
    with pytest.raises(MissingSeamError, match="has no handle_request"):
        serving.attach_transcription(SimpleNamespace())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """A model and its tokenizer as the server loads them."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder.make(tmp_path_factory.mktemp("model") / "tiny")
    with quick_collections():
        yield AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_under_fail_fast_no_http_client_of_continuous_batching_waits(
    served: tuple[Any, Any], written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is corrupted: it, a neighbour and a stream end with an error, and so does whoever comes next."""
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    model, tokenizer = served
    manager = utils.CBGenerateManager(cb_config=settings())
    config = wishes(max_new_tokens=2000)

    async def clients() -> list[Any]:
        manager.init_cb(model, config)
        queue, _ = manager.generate_streaming(model, tokenizer, {"input_ids": CLEAN}, config, "stream")
        waiting = [
            manager.generate_non_streaming(model, tokenizer, {"input_ids": tokens}, config, name)
            for name, tokens in (("clean", CLEAN), ("spark", SPARK))
        ]
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        said = []
        while (item := await queue.get()) is not None:
            said.append(item)
        late = manager.generate_non_streaming(model, tokenizer, {"input_ids": CLEAN}, config, "late")
        return [*ended, said[-1], *await asyncio.gather(late, return_exceptions=True)]

    with nanwatch.watch_generate(model):
        try:
            clean, spark, stream, late = asyncio.run(asyncio.wait_for(clients(), timeout=60))
        finally:
            manager.stop()
    assert "NaNs detected in logits: {'spark': 64}" in str(spark)
    for text in (str(clean), stream.msg, str(late)):
        assert text.endswith("the engine was stopped: 64 NaNs in the logits of another request")
    assert {type(each) for each in (clean, spark, late)} == {utils.CBWorkerDeadError}  # status 503
    assert not manager.is_alive()  # /health says 503
    assert read(written.folder).ids == ["spark"]


def test_under_fail_fast_without_continuous_batching_only_the_corrupted_client_gets_the_error(
    served: tuple[Any, Any], attached: Any, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANWATCH_FAIL_FAST", "1")
    model, tokenizer = served
    config = wishes(max_new_tokens=4)

    async def clients() -> list[Any]:
        manager = attached()
        prompts = {"clean": "w5 w6 w7", "spark": "w5 w6 spark", "after": "w8"}
        inputs = {name: dict(tokenizer(text, return_tensors="pt")) for name, text in prompts.items()}
        for each in inputs.values():
            each.pop("token_type_ids", None)
        waiting = [
            manager.generate_non_streaming(model, tokenizer, each, config, name)
            for name, each in inputs.items()
        ]
        return await asyncio.gather(*waiting, return_exceptions=True)

    with nanwatch.watch_generate(model):
        clean, spark, after = asyncio.run(asyncio.wait_for(clients(), timeout=60))
    assert isinstance(spark, nanwatch.NanLogitsError)
    assert spark.requests == {"spark": 64}
    assert len(clean[2]) == len(after[2]) == 4
    assert read(written.folder).ids == ["spark"]


def test_under_abort_a_server_without_continuous_batching_refuses_to_start(
    attached: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made of generate(), which cannot end one request of a call."""
    utils.GenerationState(continuous_batching=False)
    monkeypatch.setenv("NANWATCH_ON_NAN", "abort")
    utils.GenerationState(continuous_batching=True)
    with pytest.raises(SettingsError, match=r"abort' cannot be had here: generate\(\) answers all requests"):
        utils.GenerationState(continuous_batching=False)
