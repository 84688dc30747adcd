"""A file of answers is one run's at a time, and of the questions that it began with."""

import pytest

from qa_service.programs.jobs.answers_file import Claim, ahead_of
from qa_service.programs.jobs.questions_file import FileError


@pytest.fixture
def files(tmp_path):
    """A file of questions, and the name of one of answers."""
    questions = tmp_path / "questions.jsonl"
    questions.write_bytes(b"one\ntwo\n")
    return questions, tmp_path / "answers.jsonl"


def claim(files):
    questions, output = files
    return Claim(output, questions)


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


def test_answers_of_unknown_origin_are_not_overwritten(files):
    files[1].write_bytes(b"1\n")
    with pytest.raises(FileError, match="does not say of what questions; name another"):
        claim(files)
    assert files[1].read_bytes() == b"1\n"


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
