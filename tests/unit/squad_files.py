"""Files of questions in SQuAD's format."""

import gzip
import json


def write_squad(path, questions):
    """Writes each question with a paragraph of its own; gzipped if the name ends in `.gz`."""
    paragraphs = []
    for q in questions:
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(q.answers, q.answer_starts, strict=True)
        ]
        qa = {"id": q.id, "question": q.question, "answers": answers}
        qas = [{**qa, "is_impossible": q.is_impossible}]
        paragraphs.append({"context": q.context, "qas": qas})
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        json.dump({"data": [{"paragraphs": paragraphs}]}, file)
    return path
