"""The page at `/` in a real browser, its policy in force."""

import json
from urllib.parse import quote

import pytest

from harness.browser import CHROMIUM, Browser
from harness.collections import ANSWERS, index, write_documents
from harness.frames import ANSWER, ASK
from harness.models import ModelFile
from harness.server import ONE_INSTANCE, running_server
from tests.programs import token_flags

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium (Debian's `chromium`)"),
]

TOKEN = "a-token-of-the-tests"
ROCKETS = "\U0001f680\U0001f680 Ada Lovelace wrote the notes in London in 1843. \U0001f600"
MARKED = "document.querySelector('mark')?.textContent"


@pytest.fixture(scope="module")
def chromium():
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture
def browser(chromium):
    chromium.look(1200, 800)
    chromium.open("about:blank")
    chromium.faults.clear()
    return chromium


@pytest.fixture
def page(browser, server):
    browser.open(f"http://localhost:{server.port}/")
    yield browser
    assert browser.faults == []


def ask(page, question=ASK["question"], text=ASK["text"]):
    page.evaluate("document.querySelector('#result').hidden = true")
    for name, value in (("question", question), ("text", text)):
        page.evaluate(f"document.querySelector('#{name}').value = {json.dumps(value)}")
    page.evaluate("document.querySelector('#form').requestSubmit()")
    page.wait_for("!document.querySelector('#result').hidden")


def test_the_answer_is_marked_in_the_text(page):
    ask(page)
    assert page.evaluate("document.querySelector('#best').textContent") == ANSWER
    assert page.evaluate(MARKED) == ANSWER
    assert page.evaluate("document.querySelector('#marked').textContent") == ASK["text"]
    assert page.evaluate("document.querySelectorAll('#answers li').length") == 3
    widths = page.evaluate("[...document.querySelectorAll('#latency div')].map(e => e.style.width)")
    # The browser rounds each width to ten-thousandths.
    assert sum(float(width.rstrip("%")) for width in widths) == pytest.approx(100, abs=0.001)


def test_an_emoji_before_the_answer_does_not_shift_the_mark(page):
    ask(page, text=ROCKETS)
    assert page.evaluate(MARKED) == "Ada Lovelace"


def test_another_answer_is_shown_while_it_is_in_focus(page):
    ask(page)
    second = page.evaluate("document.querySelectorAll('#answers .words')[1].textContent")
    page.evaluate("document.querySelectorAll('#answers button')[1].focus()")
    assert page.evaluate(MARKED) == second
    page.evaluate("document.activeElement.blur()")
    assert page.evaluate(MARKED) == ANSWER


def test_a_missing_answer_is_shown_as_such(page):
    ask(page, question="How high is Mount Everest?")
    assert "not in the text" in page.evaluate("document.querySelector('#best').textContent")
    assert page.evaluate(MARKED) is None


def test_markup_in_a_text_is_text(page):
    text = "<img src=x onerror=alert(1)> <b>Ada Lovelace</b> wrote the notes."
    ask(page, text=text)
    assert page.evaluate("document.querySelector('#marked').textContent") == text
    assert page.evaluate("document.querySelectorAll('#marked *').length") == 1


@pytest.mark.parametrize("place", ["#text", "#copy", "body"])
def test_a_key_press_sends_the_question(page, place):
    page.evaluate("document.querySelector('#copy').hidden = false; document.activeElement.blur()")
    page.evaluate(f"document.querySelector('{place}').focus()")
    page.type_key("Enter", control=True)
    page.wait_for("!document.querySelector('#result').hidden")


def test_the_state_is_in_the_address(page, server):
    ask(page, question="When?", text="It was in 1843.")
    kept = page.evaluate("location.hash")
    page.open("about:blank")
    page.open(f"http://localhost:{server.port}/{kept}")
    assert page.evaluate("document.querySelector('#question').value") == "When?"
    assert page.evaluate("document.querySelector('#text').value") == "It was in 1843."


def test_a_link_asks_and_back_goes_back(page, server):
    page.open("about:blank")
    page.open(
        f"http://localhost:{server.port}/#q={quote('When?')}&t={quote('It was in 1843.')}&k=1"
    )
    page.wait_for("document.querySelector('#best').textContent == '1843'")
    ask(page, text=ROCKETS)
    page.wait_for("document.querySelector('#best').textContent == 'Ada Lovelace'")
    page.evaluate("history.back()")
    page.wait_for("document.querySelector('#best').textContent == '1843'")
    assert page.evaluate("document.querySelector('#question').value") == "When?"


def test_the_marked_answer_of_a_long_text_is_in_view(page):
    ask(page, text="It rained all day. " * 200 + ASK["text"] + " It rained all night." * 200)
    inside = """(() => {
        const box = document.querySelector('#marked').getBoundingClientRect();
        const mark = document.querySelector('mark').getBoundingClientRect();
        return mark.top >= box.top && mark.bottom <= box.bottom;
    })()"""
    assert page.evaluate(inside)


def test_a_question_that_waits_shows_so_and_can_be_cancelled(page):
    page.evaluate("window.fetch = (url, {signal} = {}) => new Promise((_, fail) => signal && "
                  "signal.addEventListener('abort', () => fail(signal.reason)))")  # fmt: skip
    page.evaluate("document.querySelector('#form').requestSubmit()")
    page.wait_for("!document.querySelector('#waiting-row').hidden")
    page.evaluate("document.querySelector('#cancel').click()")
    page.wait_for("document.querySelector('#best').textContent == 'Cancelled.'")
    assert page.evaluate("document.querySelector('#waiting-row').hidden")


def test_an_answer_can_be_copied(page):
    ask(page)
    page.evaluate("document.querySelector('#copy').click()")
    page.wait_for("document.querySelector('#copy').textContent == 'Copied'")


def test_without_an_answer_the_passages_that_were_read_are_shown(page):
    passage = {"document": "a.md", "title": "A", "heading": "B", "text": "One."}
    reply = {"answer": "", "score": 0.9, "start": None, "end": None}
    passages = [passage, {**passage, "heading": "A > B"}]
    reply |= {"timings_ms": {"queue": 1, "inference": 1}, "passages": passages}
    page.evaluate(f"showReply({{collection: 'c'}}, {json.dumps(reply)}, 3)")
    assert page.evaluate("document.querySelector('#best').textContent") == (
        "Not found in the 2 passages read."
    )
    rows = "[...document.querySelectorAll('#{} li')].map((row) => row.textContent)"
    assert page.evaluate(rows.format("passages")) == ["A > Ba.mdOne."] * 2
    assert page.evaluate("document.querySelector('#unsure').hidden")
    its = {**passage, "start": 0, "end": 4, "place": "page 3"}
    reply["unsure"] = [{"answer": "One", "score": 0.2, "start": 0, "end": 3, "passage": its}]
    page.evaluate(f"showReply({{collection: 'c'}}, {json.dumps(reply)}, 3)")
    assert not page.evaluate("document.querySelector('#unsure').hidden")
    assert page.evaluate(rows.format("answers")) == ["no answer90.0 %", "One20.0 %a.md, page 3"]


def test_a_link_to_the_page_fills_in_and_asks_its_question(page, server):
    page.open(f"http://localhost:{server.port}/#q={quote('Whose?')}&t={quote(chr(39) + 'Ada')}&k=1")
    page.wait_for("document.querySelector('#question').value == 'Whose?'")
    shown = "document.querySelector('#code').textContent"
    assert f"localhost:{server.port}/qa -d '" in page.evaluate(shown)
    assert "'\\''Ada" in page.evaluate(shown)
    page.evaluate("document.querySelector('[data-tab=json]').click()")
    assert json.loads(page.evaluate(shown)) == {"question": "Whose?", "text": "'Ada", "top_k": 1}
    page.evaluate("document.querySelector('[data-tab=python]').click()")
    compile(page.evaluate(shown), "page", "exec")


def test_live_figures_are_shown(page):
    ask(page)
    page.wait_for("document.querySelector('#p99').textContent.endsWith('ms')")
    assert page.evaluate("document.querySelector('#instances').textContent") == "1 of 1"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_window(page, width, dark):
    page.look(width, 800, dark=dark)
    ask(page, text=ASK["text"] + " " + "unbroken" * 50)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    dark_ground = (
        page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    )
    assert dark_ground == dark


def test_the_content_security_policy_blocks_other_scripts(page):
    page.evaluate("document.body.append(Object.assign(document.createElement('script'),"
                  " {textContent: 'window.ran = true'}))")  # fmt: skip
    assert page.evaluate("window.ran") is None
    page.wait_for("true")
    assert any("Content Security Policy" in fault for fault in page.faults)
    page.faults.clear()


def test_a_token_is_asked_for_and_kept(quick_model, tmp_path, browser):
    with running_server(quick_model, *ONE_INSTANCE, *token_flags(tmp_path, TOKEN)) as with_tokens:
        browser.open(f"http://localhost:{with_tokens.port}/")
        browser.wait_for("document.querySelector('#access').open")
        browser.evaluate(
            f"document.querySelector('#token').value = {json.dumps(TOKEN)};"
            "document.querySelector('#token').dispatchEvent(new Event('change'))"
        )
        ask(browser)
        assert browser.evaluate(MARKED) == ANSWER
        assert browser.evaluate("sessionStorage.getItem('token')") == TOKEN
        assert TOKEN not in browser.evaluate("location.href")


def test_a_version_can_be_chosen_where_there_are_several(browser, tmp_path):
    file = ModelFile(tmp_path)
    file.write('versions = "all"')
    with running_server(file.model, *file.flags()) as server:
        browser.open(f"http://localhost:{server.port}/")
        browser.wait_for("!document.querySelector('#choice').hidden")
        browser.evaluate("document.querySelector('#model').selectedIndex = 3")
        asked = json.loads(browser.evaluate("JSON.stringify(request())"))
        assert (asked["model"], asked["version"]) == ("m", 1)
        ask(browser)
        assert "m, version 1" in browser.evaluate("document.querySelector('#legend').textContent")
    assert browser.faults == []


def test_the_page_hides_the_choice_of_a_single_model(page):
    page.evaluate("showModels()")
    page.wait_for("document.querySelector('#model').options.length == 3")
    assert page.evaluate("document.querySelector('#choice').hidden")


def test_a_collection_can_be_chosen(quick_model, tmp_path, browser):
    collection = index(write_documents(tmp_path / "documents"), tmp_path / "collection")
    config = tmp_path / "server.toml"
    config.write_text(f'[collections.machines]\npath = "{collection}"\n')
    question, (answer, document) = next(iter(ANSWERS.items()))
    with running_server(quick_model, "--config", str(config), *ONE_INSTANCE) as server:
        browser.open(f"http://localhost:{server.port}/#q={quote(question)}&c=machines&k=3")
        browser.wait_for("!document.querySelector('#sources').hidden")
        browser.wait_for("document.querySelector('#text-field').hidden")
        assert browser.evaluate("document.querySelector('#examples').hidden")
        browser.wait_for("!document.querySelector('#result').hidden")
        assert browser.evaluate(MARKED) == answer
        assert document in browser.evaluate("document.querySelector('#passages li').textContent")
        assert answer in browser.evaluate("document.querySelector('#marked').textContent")
        place = browser.evaluate("document.querySelector('#place').textContent")
        assert place.startswith(document)
        assert "The Analytical Engine" in place
        assert "c=machines" in browser.evaluate("location.hash")
        written = "document.querySelector('#filter').value = {}; JSON.stringify(request().filter)"
        assert browser.evaluate(written.format("'machines/'")) == '{"path":"machines/"}'
        assert browser.evaluate(written.format("'{\"title\": 7}'")) == '{"title":7}'
        assert not browser.evaluate("document.querySelector('#filter-field').hidden")
        browser.evaluate(
            "document.querySelector('#source').value = '';"
            "document.querySelector('#source').dispatchEvent(new Event('change'))"
        )
        assert not browser.evaluate("document.querySelector('#examples').hidden")
        ask(browser)
        assert browser.evaluate(MARKED) == ANSWER
        assert browser.evaluate("document.querySelector('#place').textContent") == ""
    assert browser.faults == []
