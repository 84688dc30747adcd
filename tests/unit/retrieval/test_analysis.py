"""What a question's words find, in a real index: other forms, other scripts, names of code."""

# ruff: noqa: RUF001, the signs of other scripts are meant
import unicodedata

import pytest

from harness.collections import run_index
from qa_service.retrieval.analysis import words_of
from qa_service.retrieval.collection import Collection
from qa_service.retrieval.tantivy_index import LANGUAGES

pytestmark = pytest.mark.usefixtures("reads_here")

TEXTS = {
    "accents": "Applicants send two résumés to the café.",
    "decomposed": unicodedata.normalize("NFD", "The crème brûlée is burnt."),
    "ligature": "Open the proﬁle and check its ﬂags.",
    "wide": "Ｔｏｋｅｎｓ expire after an hour.",
    "zero_width": "A zero\u200bwidth sign and a soft hy\u00adphen are invisible.",
    "chinese": "服务器支持中文搜索。",
    "japanese": "このサーバーは日本語の検索に対応しています。",
    "korean": "이 서버는 한국어를 검색합니다.",
    "thai": "ภาษาไทยค้นหาได้",
    "greek": "Το αρχείο είναι ΚΑΤΆΛΟΓΟΣ.",
    "russian": "Счётчик новых событий.",
    "csharp": "Written in C# by default.",
    "cpp": "Written in C++ by default.",
    "c": "Written in C by default.",
    "mail": "An e-mail is sent.",
    "mixed": "使用Docker容器部署。",
    "option": "Give --no-verify-ssl to skip it.",
    "short_option": "Give -q to be silent.",
    "path": "Edit /etc/nginx/nginx.conf first.",
    "dotted": "Call asyncio.get_running_loop here.",
    "snake": "Set max_connections in it.",
    "camel": "Set readTimeoutSeconds in it.",
    "dotnet": "Works on .NET and elsewhere.",
    "version": "Needs Python 3.11 or later.",
}

FINDS = [
    ("e\u2011mail", "mail"),
    ("docker", "mixed"),
    ("resumes", "accents"),
    ("résumé", "accents"),
    ("re\u0301sume\u0301s", "accents"),
    ("cafe", "accents"),
    ("crème brûlée", "decomposed"),
    ("creme brulee", "decomposed"),
    ("profile", "ligature"),
    ("flag", "ligature"),
    ("token", "wide"),
    ("ｔｏｋｅｎ", "wide"),
    ("hyphen", "zero_width"),
    ("zerowidth", "zero_width"),
    ("中文", "chinese"),
    ("搜", "chinese"),
    ("日本語で検索できますか", "japanese"),
    ("ｻｰﾊﾞｰ", "japanese"),
    ("한국어", "korean"),
    (unicodedata.normalize("NFD", "한국어"), "korean"),
    ("ไทย", "thai"),
    ("καταλογος", "greek"),
    ("счетчик", "russian"),
    ("C#", "csharp"),
    ("c++", "cpp"),
    ("email", "mail"),
    ("e-mail", "mail"),
    ("--no-verify-ssl", "option"),
    ("no-verify-ssl", "option"),
    ("verify", "option"),
    ("-q", "short_option"),
    ("/etc/nginx/nginx.conf", "path"),
    ("nginx.conf", "path"),
    ("nginx", "path"),
    ("asyncio.get_running_loop()", "dotted"),
    ("get_running_loop", "dotted"),
    ("running", "dotted"),
    ("max_connections", "snake"),
    ("max-connections", "snake"),
    ("maxConnections", "snake"),
    ("connection", "snake"),
    ("read_timeout_seconds", "camel"),
    ("timeout", "camel"),
    (".NET", "dotnet"),
    ("3.11", "version"),
]


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> Collection:
    folder = tmp_path_factory.mktemp("analysis")
    docs, output = folder / "docs", folder / "collection"
    docs.mkdir()
    for name, text in TEXTS.items():
        (docs / f"{name}.txt").write_text(text)
    run_index(docs, output)
    return Collection(output)


@pytest.mark.parametrize(("question", "name"), FINDS)
def test_a_question_finds_the_same_word_in_another_form(collection, question, name):
    found, *_ = collection.search(question, 3)
    assert found.passage.document == f"{name}.txt"


@pytest.mark.parametrize("language", LANGUAGES)
def test_accents_and_unicode_forms_do_not_change_a_word(tmp_path, language):
    docs, output = tmp_path / "docs", tmp_path / "collection"
    docs.mkdir()
    (docs / "a.txt").write_text("Gürültü ölçümü résumé naïve señor Škoda.")
    run_index(docs, output, language=language)
    collection = Collection(output)
    for word in ("résumé", "naïve", "señor", "Škoda", "gürültü"):
        bare = unicodedata.normalize("NFD", word).encode("ascii", "ignore").decode()
        for form in (word, unicodedata.normalize("NFD", word), bare):
            assert collection.search(form, 1), (language, form)


def test_a_question_of_signs_alone_finds_nothing(collection):
    assert collection.search("--- ?! ... # /", 3) == []


def test_a_long_run_of_signs_gives_no_more_words_than_it_has_signs():
    for sign in ("-", ".", "a.", "a-b/", "漢", "#+", "\u0301"):
        text = sign * 2000
        assert len(words_of(text).split()) <= 2 * len(text)
