"""Adapters that grow, a run that is cut off, and labels, all on a model of a few weights."""

import json
import logging

import peft
import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering

from qa_service.protocol import Answer
from qa_service.squad import read_squad
from qa_service.training import adapters, labelling
from qa_service.training.averaging import average_adapters
from qa_service.training.features import Features
from qa_service.training.labelling import LabellingConfig, label_sentences
from qa_service.training.trainer import Trainer, TrainingConfig


def tiny_encoder():
    torch.manual_seed(0)
    return BertForQuestionAnswering(
        BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=16,
        )
    )


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(adapters, "load_encoder", tiny_encoder)


ROWS = [
    Features(
        torch.tensor([2, n % 7 + 4, 3, 5, 6, 7, 3]).numpy(),
        torch.tensor([0, 0, 0, 1, 1, 1, 1]).numpy(),
        3 + n % 3,
        3 + n % 3,
    )
    for n in range(24)
]
BATCHES = [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(8)]
CONFIG = TrainingConfig(learning_rate=0.01, checkpoint_steps=2, evaluation_steps=3)


def weights_of(model):
    return peft.get_peft_model_state_dict(model)


def output_of(model):
    ids = torch.tensor([[2, 4, 3, 5, 6, 3]])
    with torch.inference_mode():
        return model.eval()(input_ids=ids).start_logits


def trained(directory, batches=BATCHES, evaluate=dict):
    directory.mkdir(exist_ok=True)
    torch.manual_seed(1)
    model = adapters.build_model(rank=2)
    return model, Trainer(model, CONFIG, directory, evaluate).train(ROWS, batches, 0)


def test_adapter_grows_without_changing_its_answers(tmp_path):
    model, _ = trained(tmp_path / "run")
    adapters.save_adapter(model, tmp_path / "small")
    same = adapters.build_model(2, tmp_path / "small")
    larger = adapters.build_model(5, tmp_path / "small")
    assert not torch.equal(output_of(model), output_of(adapters.build_model(2)))
    torch.testing.assert_close(output_of(same), output_of(model), atol=2e-2, rtol=0)
    torch.testing.assert_close(output_of(larger), output_of(same))


def change_of(model):
    layer = model.base_model.model.bert.encoder.layer[0].output.dense
    return layer.get_delta_weight("default")


def test_average_is_the_mean_of_the_changes(tmp_path):
    changes = []
    for name, batches in (("one", BATCHES), ("two", BATCHES[:5])):
        model, _ = trained(tmp_path / name, batches)
        adapters.save_adapter(model, tmp_path / name)
        changes.append(change_of(model))
    average = average_adapters([tmp_path / "one", tmp_path / "two"], rank=4)
    assert not torch.allclose(changes[0], changes[1], atol=1e-3)
    torch.testing.assert_close(change_of(average), sum(changes) / 2, atol=1e-3, rtol=0)


def test_adapter_does_not_shrink(tmp_path):
    adapters.save_adapter(adapters.build_model(4), tmp_path / "large")
    with pytest.raises(ValueError, match="rank"):
        adapters.build_model(2, tmp_path / "large")


def test_saved_adapter_loads_with_peft_alone_and_is_half_precision(tmp_path):
    model, _ = trained(tmp_path / "run")
    adapters.save_adapter(model, tmp_path / "adapter")
    assert {p.name for p in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == adapters.ENCODER_NAME
    loaded = peft.PeftModel.from_pretrained(tiny_encoder(), str(tmp_path / "adapter"))
    torch.testing.assert_close(output_of(loaded), output_of(model), atol=2e-2, rtol=0)


def test_cut_off_run_ends_like_an_unbroken_one(tmp_path):
    whole, metrics = trained(tmp_path / "whole")

    class CutOffError(Exception):
        pass

    def cut_off():
        raise CutOffError

    with pytest.raises(CutOffError):
        trained(tmp_path / "broken", evaluate=cut_off)
    resumed, _ = trained(tmp_path / "broken")
    assert metrics["steps"] == len(BATCHES)
    for name, weight in weights_of(whole).items():
        torch.testing.assert_close(weights_of(resumed)[name], weight)


def test_checkpoint_of_another_run_is_refused(tmp_path):
    trained(tmp_path / "run")
    with pytest.raises(ValueError, match="other settings"):
        trained(tmp_path / "run", batches=BATCHES[:5])


def test_metrics_at_intervals_are_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    trained(tmp_path / "run", evaluate=lambda: {"f1": 50.0})
    lines = (tmp_path / "run" / "training_log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 6]


def test_labels_keep_only_what_the_model_is_sure_of(tmp_path, monkeypatch):
    sentences = ["ada -lrb- a writer -rrb- was born in 1815 .", "bo sang .", "cy dug ."]
    source = tmp_path / "sentences.json"
    source.write_text(
        json.dumps(
            {
                "data": [
                    {
                        "paragraphs": [
                            {"context": s, "qas": [{"id": s, "question": "when ?", "answers": []}]}
                            for s in sentences
                        ]
                    }
                ]
            }
        )
    )

    def answers(_reader, questions):
        assert questions[0].context == "ada ( a writer ) was born in 1815 ."
        return [Answer("1815", 0.9, 29, 33), Answer("bo", 0.2, 0, 2), Answer("", 0.9, None, None)]

    monkeypatch.setattr(labelling, "best_answers", answers)
    counts = label_sentences(None, source, tmp_path / "out.json.gz", LabellingConfig(seed=1))
    assert counts == {"questions": 3, "kept": 1}
    (question,) = read_squad(tmp_path / "out.json.gz")
    start = question.answer_starts[0]
    assert question.context[start : start + 4] == question.answers[0] == "1815"
