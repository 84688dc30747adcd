"""Files of questions and answers: what is read, whose answers they are, and their order."""

import gzip
import json
import os
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_service.programs.jobs import answers_file, file_run
from qa_service.programs.jobs.answers_file import AnswersFile, ahead_of, read_names
from qa_service.programs.jobs.file_run import OrderedOutput
from qa_service.programs.jobs.questions_file import FileError, count_rows, read_rows
from tests.support import present

SQUAD = {"data": [{"paragraphs": [{"context": "t", "qas": [{"id": "a", "question": "q"}]}]}]}
LINES = '{"question":"q","text":"t","id":"a"}\n\n{"question":"q2","text":"t","model":"m"}\n'
FILES = {
    "q.jsonl": LINES.encode(),
    "q.jsonl.gz": gzip.compress(LINES.encode(), mtime=0),
    "q.csv": b'id,question,text,model\na,q,t,\n,q2,"t",m\n',
    "q.json": json.dumps(SQUAD).encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_each_format_gives_requests(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(FILES[name])
    rows = list(read_rows(path))
    assert count_rows(path) == len(rows)
    requests = [json.loads(row.body) for row in rows]
    assert requests[0] == {"id": "a", "question": "q", "text": "t"}
    assert requests[1:] in ([], [{"id": 2, "question": "q2", "text": "t", "model": "m"}])


def test_a_rows_message_id_depends_on_its_content(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"id":"a","question":"q","text":"t"}\n{"text":"t","question":"q","id":"a"}')
    first, second = read_rows(path)
    assert first.message_id == second.message_id
    path.write_text('{"id":"b","question":"q","text":"t"}')
    [other] = read_rows(path)
    assert other.message_id != first.message_id


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("q.txt", b"", "must end in"),
        ("q.jsonl.gz", b"no gzip", "cannot be read"),
        ("q.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)[:-9], "cannot be read"),
        ("q.csv", b"question,txt\n", "no text"),
        ("q.csv", b"frage;text\nWer?;Ada.\n", "names no question, but frage, text"),
        ("q.json", b"{}", "SQuAD"),
        ("q.json", b"[" * 50_000, "cannot be read"),
    ],
)
def test_a_faulty_file_is_reported_in_one_line(tmp_path, name, body, words):
    path = tmp_path / name
    path.write_bytes(body)
    with pytest.raises(FileError, match=words):
        list(read_rows(path))


DEEP = b'{"id":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
FAULTS = [
    ("q.jsonl", b"{", "line 2: Input data was truncated"),
    ("q.jsonl", b"5", "line 2: Expected `object`"),
    ("q.jsonl", b'{"question":"\xff"}', "line 2: 'utf-8'"),
    ("q.jsonl", b'{"question":"\\ud800"}', "line 2: "),
    ("q.jsonl", DEEP, "line 2: maximum recursion depth"),
    ("q.csv", b"a", "line 3: not as many fields"),
    ("q.csv", b'"a"b,t', "after line 2: "),
    ("q.csv", b"q,t\xff", "row 2: 'utf-8'"),
]


@pytest.mark.parametrize(("name", "line", "words"), FAULTS)
def test_an_unreadable_line_is_a_row_with_an_error(tmp_path, name, line, words):
    head, good = (b"", b'{"question":"q","text":"t"}')
    if name == "q.csv":
        head, good = b"question,text\n", b"q,t"
    path = tmp_path / name
    path.write_bytes(head + b"\n".join([good, line, good]) + b"\n")
    first, bad, last = read_rows(path)
    assert count_rows(path) == 3
    assert (first.fault, last.fault) == ("", "")
    assert (bad.id, bad.fault[: len(words)]) == (2, words)
    assert (first.id, last.id) == (1, 3)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileError, match=r"nothing.*No such file"):
        count_rows(tmp_path / "nothing.jsonl")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answers.jsonl"


def abandon(output: OrderedOutput) -> None:
    """What a kill leaves: what was written, and nothing closed in order."""
    output._file.close()
    present(output._ahead_file).close()


@given(order=st.permutations(range(12)), flushes=st.sets(st.integers(0, 11)), data=st.data())
def test_an_output_killed_anywhere_continues_without_repeats(
    tmp_path_factory, order, flushes, data
):
    path = tmp_path_factory.mktemp("run") / "answers.jsonl"
    output, written = OrderedOutput(path), set()
    for step, index in enumerate(order):
        output.put(index, b"%d" % index)
        if step in flushes:
            output.flush()
            written = set(order[: step + 1])
        if data.draw(st.booleans()):
            abandon(output)
            output = OrderedOutput(path)
            assert {i for i in range(12) if output.has(i)} == written
            for again in set(order[: step + 1]) - written:
                output.put(again, b"%d" % again)
            output.flush()
            written = set(order[: step + 1])
    output.close()
    assert path.read_bytes() == b"".join(b"%d\n" % i for i in range(12))
    assert [file.name for file in path.parent.iterdir()] == ["answers.jsonl"]


def test_lines_that_were_cut_short_are_dropped(path):
    path.write_bytes(b"zero\none\ntw")
    path.with_name("answers.jsonl.ahead").write_bytes(b"1\told\n3\tthree\n4\tfo")
    output = OrderedOutput(path)
    assert [output.has(i) for i in range(5)] == [True, True, False, True, False]
    output.put(2, b"two")
    output.close()
    assert path.read_bytes() == b"zero\none\ntwo\nthree\n"


def test_a_file_that_is_no_ahead_file_is_ignored(path):
    path.with_name("answers.jsonl.ahead").write_bytes(b"1\tone\nno record\n2\ttwo\n")
    assert [OrderedOutput(path).has(i) for i in range(3)] == [False, True, False]


def test_error_answers_are_counted_wherever_they_stand(path):
    error = b'{"id":1,"error":{"code":"c"}}'
    path.write_bytes(b'{"id":1}\n' + error + b"\n")
    path.with_name("answers.jsonl.ahead").write_bytes(b"3\t" + error + b"\n")
    output = OrderedOutput(path)
    assert output.num_errors == 2
    output.put(2, error)
    assert output.num_errors == 3


def test_the_ahead_file_is_bounded(path, monkeypatch):
    monkeypatch.setattr(file_run, "_MAX_AHEAD_BYTES", 100)
    output = OrderedOutput(path)
    output.put(1, b"x" * 10)
    for index in range(0, 200, 2):  # there is always one that waits for one before it
        output.put(index, b"x" * 10)
        output.put(index + 3, b"x" * 10)
        output.flush()
    assert output.num_ahead == 1
    assert path.with_name("answers.jsonl.ahead").stat().st_size < 300
    abandon(output)
    again = OrderedOutput(path)
    assert (again.num_written, again.has(201)) == (200, True)


def test_a_collected_answer_is_written_once(path):
    file = AnswersFile(path)
    assert file.add("m1", b'{"id":1,"answer":"a"}')
    assert not file.add("m1", b'{"id":1,"answer":"a"}')
    assert not file.add("m2", b"no JSON")
    assert not file.add("m2", DEEP)
    file.sync()
    file.close()
    assert path.read_bytes() == b'{"message_id":"m1","id":1,"answer":"a"}\n'
    assert read_names(path)[0] == {"m1"}


def test_two_programs_do_not_collect_into_one_file(path):
    first = AnswersFile(path)
    with pytest.raises(FileError, match="another run is writing"):
        AnswersFile(path)
    first.close()
    AnswersFile(path).close()


def test_a_file_of_another_kind_is_not_appended_to(path):
    path.write_text('{"id": 1}\n')
    with pytest.raises(FileError, match="line 1"):
        AnswersFile(path)


def test_a_pipe_gets_the_answers_in_order_as_long_as_somebody_reads_them(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    output = OrderedOutput(path, is_kept=False)
    for index, line in ((1, b"b"), (0, b"a")):
        output.put(index, line)
        output.flush()
    assert os.read(reader, 100) == b"a\nb\n"
    os.close(reader)
    output.put(2, b"c")
    with pytest.raises(FileError, match="nobody reads the answers any more"):
        output.flush()
    output.close()
    assert not ahead_of(path).exists()


def test_an_answer_torn_in_the_file_is_restored_from_the_ahead_file(path):
    path.write_bytes(b'{"id":1}\n{"id":2,"ans')
    ahead_of(path).write_bytes(b'1\t{"id":2}\n')
    output = OrderedOutput(path)
    assert output.num_written == 2
    assert output.last_line == b'{"id":2}'
    output.close()
    assert path.read_bytes() == b'{"id":1}\n{"id":2}\n'


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("q.csv", "question;text\r\nWho?;Ada, then Bo.\r\n", "utf-8-sig"),
        ("q.csv", "question\ttext\nWho?\tAda, then Bo.\n", "utf-16"),
        ("q.csv", 'question,text\nWho?,"Ada, then Bo."\n', "utf-8-sig"),
        ("q.jsonl", '{"question": "Who?", "text": "Ada, then Bo."}\n', "utf-8-sig"),
        ("q.jsonl", '{"question": "Who?", "text": "Ada, then Bo."}\n', "utf-16"),
    ],
)
def test_files_as_spreadsheets_and_editors_save_them_are_read(tmp_path, name, text, encoding):
    file = tmp_path / name
    file.write_bytes(text.encode(encoding))
    assert count_rows(file) == 1
    (row,) = read_rows(file)
    assert json.loads(row.body) == {"id": 1, "question": "Who?", "text": "Ada, then Bo."}


def test_a_tables_whole_numbers_are_whole(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text("question,text,top_k,timeout_ms\nWho?,Ada.,2,1500\nWho?,Ada.,3.0,1e3\n")
    requests = [json.loads(row.body) for row in read_rows(path)]
    assert [repr(its["top_k"]) for its in requests] == ["2", "3"]


@pytest.fixture
def files(tmp_path):
    """A file of questions, and the name of one of answers."""
    questions = tmp_path / "questions.jsonl"
    questions.write_bytes(b"one\ntwo\n")
    return questions, tmp_path / "answers.jsonl"


def claim(files, collection=None):
    questions, output = files
    return answers_file.claim(output, questions, collection)


def begin(files):
    """A run that wrote one answer."""
    held = claim(files)
    files[1].write_bytes(b"1\n")
    held.close()


def test_two_runs_do_not_write_to_one_file(files):
    held = claim(files)
    with pytest.raises(FileError, match=r"answers\.jsonl: another run is writing"):
        claim(files)
    held.close()
    claim(files).close()


def test_a_run_continues_with_the_same_or_more_questions(files):
    begin(files)
    claim(files).close()
    with files[0].open("ab") as file:
        file.write(b"three\n")
    claim(files).close()
    claim(files).close()


@pytest.mark.parametrize("questions", [b"one\nTWO\n", b"one\n", b"", b"zero\none\ntwo\n"])
def test_answers_to_changed_questions_are_refused(files, questions):
    begin(files)
    files[0].write_bytes(questions)
    with pytest.raises(FileError, match=r"answers to questions\.jsonl, which was another file"):
        claim(files)
    files[0].write_bytes(b"one\ntwo\n")  # and nothing has been noted of the others
    claim(files).close()


@pytest.mark.parametrize(("first", "then"), [("a", "b"), ("a", None), (None, "a")])
def test_answers_from_another_collection_are_refused(files, first, then):
    held = claim(files, first)
    files[1].write_bytes(b"1\n")
    held.close()
    whose = "the collection a" if first else "texts"
    with pytest.raises(FileError, match=f"holds answers from {whose}; name another --output"):
        claim(files, then)
    claim(files, first).close()


def test_answers_of_unknown_origin_are_not_overwritten(files):
    files[1].write_bytes(b"1\n")
    with pytest.raises(FileError, match="does not say of what questions; name another"):
        claim(files)
    assert files[1].read_bytes() == b"1\n"
    assert sorted(path.name for path in files[0].parent.iterdir()) == [
        "answers.jsonl",
        "questions.jsonl",
    ]


def test_what_the_answers_are_of_outlasts_a_full_disk(files):
    claim(files).close()
    files[1].write_text('{"id":1}\n')
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            claim(files)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    claim(files).close()


def test_a_new_output_takes_nothing_of_an_earlier_run(files):
    begin(files)
    files[1].unlink()
    ahead_of(files[1]).write_bytes(b"1\told\n")
    files[0].write_bytes(b"others\n")
    claim(files).close()
    assert not ahead_of(files[1]).exists()


def test_answers_in_the_ahead_file_count_as_answers(files):
    held = claim(files)
    files[1].touch()
    ahead_of(files[1]).write_bytes(b"1\t2\n")
    held.close()
    claim(files).close()
    files[0].write_bytes(b"others\n")
    with pytest.raises(FileError):
        claim(files)


def test_an_empty_output_file_is_accepted(files):
    files[1].touch()
    claim(files).close()
