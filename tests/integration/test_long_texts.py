"""A long text that a server cuts has the answers that the reader finds in the whole."""

import pytest

from harness.models import link_model
from harness.server import ONE_INSTANCE, running_server
from qa_service.data.squad import OWN_QUESTIONS, read_squad
from qa_service.instance.batch_cost import BatchRule
from qa_service.instance.engines import EngineConfig, make_engine
from qa_service.instance.model_folder.manifest import load_manifest
from qa_service.instance.reader.reader import Reader
from qa_service.wire.messages import Question
from tests.programs import change_reading

pytestmark = pytest.mark.slow

NUM_CHARS = {96: 3_200, 384: 9_538}
"""By tokens of a window: several segments."""


@pytest.fixture(scope="module", params=NUM_CHARS)
def window_tokens(request):
    return request.param


@pytest.fixture(scope="module")
def model(quick_model, tmp_path_factory, window_tokens):
    """The built-in model with a window of this many tokens."""
    copy = link_model(quick_model, tmp_path_factory.mktemp("model") / "model")
    change_reading(copy, window_tokens=window_tokens)
    return copy


@pytest.fixture(scope="module")
def reader(model):
    """In the engine of the server: another one's scores are not quite the same."""
    manifest = load_manifest(model)
    engine = make_engine(ONE_INSTANCE[1], model, manifest, EngineConfig())
    return Reader(model, manifest, engine.logits, BatchRule())


def test_a_server_answers_a_long_text_as_the_reader_does(model, reader, window_tokens):
    items = read_squad(OWN_QUESTIONS)
    text = "\n".join(dict.fromkeys(item.context for item in items))
    num_chars = NUM_CHARS[window_tokens]
    text = (text * (1 + num_chars // len(text)))[:num_chars]
    asked = [Question(item.question, text, 3) for item in items[:1]]
    with running_server(model, *ONE_INSTANCE) as server:
        for question, answers in zip(asked, reader.read(asked), strict=True):
            reply = server.ask(question=question.question, text=text, top_k=3)
            found = reply["answers"]
            assert [a["answer"] for a in found] == [a.answer for a in answers]
            assert [a["start"] for a in found] == [a.start for a in answers]
            scores = [a.score for a in answers]
            assert [a["score"] for a in found] == pytest.approx(scores, abs=2e-3)
