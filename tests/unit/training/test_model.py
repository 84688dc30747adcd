"""Adapters that grow, models trained whole, a run that is cut off, on a model of a few weights."""

import dataclasses
import itertools
import json
import logging
from pathlib import Path

import numpy as np
import pytest

from tests.support import Lazy, needs_torch, present
from training.features import Features, Target, collate

pytestmark = [pytest.mark.slow, needs_torch]

torch, peft, transformers = Lazy("torch"), Lazy("peft"), Lazy("transformers")
adapters, trainer = Lazy("training.adapters"), Lazy("training.trainer")
finetune_model_main = Lazy("training.finetune_model_main")


def tiny_encoder(_encoder=None):
    torch.manual_seed(0)
    return transformers.BertForQuestionAnswering(
        transformers.BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=16,
        )
    )


@pytest.fixture(autouse=True)
def load(monkeypatch):
    """What loads an encoder, in whose place one of a few weights is."""
    real = adapters.Encoder.load
    monkeypatch.setattr("training.adapters.Encoder.load", tiny_encoder)
    return real


def encoder_in(folder=Path()):
    return adapters.Encoder("some/encoder", folder)


ROWS = [
    Features(np.array([2, n % 7 + 4, 3, 5, 6, 7, 3]), Target.of_span(3 + n % 3, 3 + n % 3))
    for n in range(24)
]
BATCHES = [[3 * n, 3 * n + 1, 3 * n + 2] for n in range(8)]
CONFIG = {"learning_rate": 0.01, "checkpoint_steps": 2, "evaluation_steps": 3}


def weights_of(model):
    return peft.get_peft_model_state_dict(model)


IDS = [[2, 4, 3, 5, 6, 3]]


def output_of(model):
    with torch.inference_mode():
        return model.eval()(input_ids=torch.tensor(IDS)).start_logits


def build_adapted(encoder):
    return adapters.build_model(encoder, 2)


def trained(directory, batches=BATCHES, evaluate=dict, build=build_adapted):
    directory.mkdir(exist_ok=True)
    torch.manual_seed(1)
    model = build(encoder_in())
    config = trainer.TrainingConfig(**CONFIG)
    return model, trainer.Trainer(model, config, directory, evaluate).train(ROWS, batches, 0)


def test_adapter_grows_without_changing_its_answers(tmp_path):
    model, _ = trained(tmp_path / "run")
    adapters.save_adapter(model, tmp_path / "small")
    same = adapters.build_model(encoder_in(), 2, tmp_path / "small")
    larger = adapters.build_model(encoder_in(), 5, tmp_path / "small")
    assert not torch.equal(output_of(model), output_of(adapters.build_model(encoder_in(), 2)))
    torch.testing.assert_close(output_of(same), output_of(model), atol=2e-2, rtol=0)
    torch.testing.assert_close(output_of(larger), output_of(same))


def test_an_encoder_that_is_kept_in_float16_is_trained_in_float32(tmp_path, load):
    tiny_encoder().half().save_pretrained(tmp_path)
    loaded = load(encoder_in(tmp_path))
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}


def change_of(model):
    layer = model.base_model.model.bert.encoder.layer[0].output.dense
    return layer.get_delta_weight("default")


def test_average_is_the_mean_of_the_changes(tmp_path):
    changes = []
    for name, batches in (("one", BATCHES), ("two", BATCHES[:5])):
        model, _ = trained(tmp_path / name, batches)
        adapters.save_adapter(model, tmp_path / name)
        changes.append(change_of(model))
    average = adapters.average_adapters(encoder_in(), [tmp_path / "one", tmp_path / "two"], rank=4)
    assert not torch.allclose(changes[0], changes[1], atol=1e-3)
    torch.testing.assert_close(change_of(average), sum(changes) / 2, atol=1e-3, rtol=0)


def test_adapter_does_not_shrink(tmp_path):
    adapters.save_adapter(adapters.build_model(encoder_in(), 4), tmp_path / "large")
    with pytest.raises(ValueError, match="rank"):
        adapters.build_model(encoder_in(), 2, tmp_path / "large")


def test_saved_adapter_loads_with_peft_alone_and_is_half_precision(tmp_path):
    model, _ = trained(tmp_path / "run")
    adapters.save_adapter(model, tmp_path / "adapter")
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == encoder_in().name
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


def test_a_run_with_a_time_limit_ends_by_then_at_a_rate_of_zero(tmp_path, monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr("training.trainer.time.monotonic", lambda: next(seconds))
    rates, real = [], trainer.Trainer._rate

    def seen(self, total_steps):
        rates.append(real(self, total_steps))
        return rates[-1]

    monkeypatch.setattr("training.trainer.Trainer._rate", seen)
    config = trainer.TrainingConfig(**CONFIG, max_seconds=5.0, warmup_share=0.2)
    timed = trainer.Trainer(build_adapted(encoder_in()), config, tmp_path, dict)
    metrics = timed.train(ROWS, BATCHES, 0)
    assert metrics["steps"] == len(rates) == 5 < len(BATCHES)
    assert rates == pytest.approx([0.5, 0.8 / 0.75, 0.6 / 0.75, 0.4 / 0.75, 0.2 / 0.75], abs=0.07)


def test_each_group_of_a_batch_counts_once_in_its_loss():
    logits = torch.tensor(np.random.default_rng(3).normal(size=(3, 7)).astype(np.float32))
    pair = [dataclasses.replace(row, group=7) for row in ROWS[:2]]
    of_pair = trainer.span_loss(logits[:2], logits[:2], collate(pair, 0))
    of_third = trainer.span_loss(logits[2:], logits[2:], collate([ROWS[2]], 0))
    apart = [trainer.span_loss(logits[[n]], logits[[n]], collate([ROWS[n]], 0)) for n in range(2)]
    of_rows = torch.stack(apart).mean()
    in_group = 2 * of_pair - of_rows
    whole = trainer.span_loss(logits, logits, collate([*pair, ROWS[2]], 0))
    of_groups, by_row = (in_group + of_third) / 2, (2 * of_rows + of_third) / 3
    torch.testing.assert_close(whole, (of_groups + by_row) / 2)


def test_rounded_values_lie_on_steps_of_their_row_and_the_gradient_passes():
    values = torch.tensor([[0.3, -1.0, 0.26], [5.0, 2.6, 0.0]], requires_grad=True)
    steps = adapters.rounded(values, 2)
    assert steps.tolist() == [[0.5, -1.0, 0.5], [5.0, 2.5, 0.0]]
    steps.sum().backward()
    assert torch.equal(present(values.grad), torch.ones_like(values))


def test_adapter_learns_from_rounded_products_and_answers_with_exact_ones(tmp_path):
    def build(encoder):
        model = build_adapted(encoder)
        adapters.round_products(model)
        return model

    model, _ = trained(tmp_path / "run", build=build)
    adapters.save_adapter(model, tmp_path / "run")
    exact = adapters.build_model(encoder_in(), 2, tmp_path / "run")
    assert change_of(model).abs().max() > 0
    torch.testing.assert_close(output_of(model), output_of(exact), atol=2e-2, rtol=0)
    assert not torch.allclose(
        model.train()(input_ids=torch.tensor(IDS)).start_logits, output_of(model.eval())
    )


def test_frozen_layers_stay_as_they_are_and_the_rest_learns(tmp_path):
    def build(encoder):
        model = build_adapted(encoder)
        adapters.freeze_layers(model, 1)
        return model

    before = build(encoder_in()).state_dict()
    model, _ = trained(tmp_path / "run", build=build)
    after = model.state_dict()
    changed = {name for name, weight in after.items() if (weight != before[name]).any()}
    assert any("qa_outputs" in name for name in changed)
    assert not any("encoder.layer.0." in name for name in changed)


def test_model_trained_whole_keeps_its_embeddings(tmp_path):
    model, _ = trained(tmp_path / "run", build=adapters.build_whole_model)
    after, before = model.state_dict(), tiny_encoder().state_dict()
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    assert "bert.encoder.layer.0.output.LayerNorm.bias" in changed
    assert not [name for name in changed if "embeddings" in name]


def test_adapter_of_a_model_trained_whole_answers_like_it(tmp_path):
    model, _ = trained(tmp_path / "run", build=adapters.build_whole_model)
    adapters.save_adapter(adapters.adapter_of(model, encoder_in(), rank=8), tmp_path / "adapter")
    again = adapters.build_whole_model(encoder_in(), tmp_path / "adapter")
    torch.testing.assert_close(output_of(again), output_of(model), atol=2e-2, rtol=0)
    assert not torch.allclose(output_of(again), output_of(tiny_encoder()), atol=0.1)


def test_adapter_of_a_low_rank_is_the_nearest(tmp_path):
    model, _ = trained(tmp_path / "run", build=adapters.build_whole_model)
    wanted = model.bert.encoder.layer[0].output.dense.weight
    wanted = wanted - tiny_encoder().bert.encoder.layer[0].output.dense.weight
    change = change_of(adapters.adapter_of(model, encoder_in(), rank=3))
    missed = torch.linalg.matrix_norm(wanted - change)
    assert torch.linalg.matrix_rank(change, rtol=1e-4) == 3
    torch.testing.assert_close(missed, torch.linalg.svdvals(wanted)[3:].norm())


@pytest.mark.parametrize(("bfloat16_s", "is_used"), [(0.1, True), (0.3, False)])
def test_bfloat16_is_used_where_it_is_faster(monkeypatch, bfloat16_s, is_used):
    times = {torch.float32: 0.2, torch.bfloat16: bfloat16_s}
    monkeypatch.setattr("training.trainer._product_s", lambda dtype, rows: times[dtype])
    trainer.is_bfloat16_faster.cache_clear()
    assert trainer.is_bfloat16_faster() == is_used
    trainer.is_bfloat16_faster.cache_clear()


def test_loss_is_the_cross_entropy_of_what_is_right_and_knows_no_padding():
    target = Target(2, np.array([0.75, 0.25], np.float32), np.array([0, 1], np.float32))
    ids = ROWS[0].input_ids
    rows = [Features(ids[:4], Target.of_span(0, 0)), Features(ids, target)]
    start, end = torch.randn(2, 2, 7)
    logs = [start[0, :4].log_softmax(0), end[0, :4].log_softmax(0)]
    logs += [start[1].log_softmax(0), end[1].log_softmax(0)]
    wanted = -(logs[0][0] + logs[1][0] + 0.75 * logs[2][2] + 0.25 * logs[2][3] + logs[3][3]) / 4
    torch.testing.assert_close(trainer.span_loss(start, end, collate(rows, 0)), wanted)


def test_the_passages_of_a_question_share_one_softmax_and_one_null_answer():
    ids = ROWS[0].input_ids
    answered = Features(ids, Target.of_span(3, 3), group=9)
    other = Features(ids[:5], Target.of_span(0, 0), group=9)
    logits = torch.randn(2, 7)
    by_row = [-logits[0].log_softmax(0)[3], -logits[1, :5].log_softmax(0)[0]]
    passages = [logits[0, 1:] - logits[0, 0], logits[1, 1:5] - logits[1, 0]]
    together = torch.cat([torch.zeros(1), *passages])
    wanted = (torch.stack(by_row).mean() - together.log_softmax(0)[3]) / 2
    loss = trainer.span_loss(logits, logits, collate([answered, other], 0))
    torch.testing.assert_close(loss, wanted)


@pytest.mark.parametrize(
    "flags",
    [
        ["--train", "none.json=5", "--dev", "none.json", "--output_dir", "out"],
        ["--label", "none.json", "labels", "--init", "adapter"],
    ],
)
def test_training_on_a_missing_file_is_one_line_and_code_2(monkeypatch, capsys, flags):
    monkeypatch.setattr("sys.argv", ["finetune_model.py", *flags])
    assert finetune_model_main.main() == 2
    assert capsys.readouterr().err == "finetune_model.py: there is no file none.json\n"
