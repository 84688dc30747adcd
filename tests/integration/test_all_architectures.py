"""Every architecture that transformers loads for question answering: prepared, and asked."""

import pytest

pytest.importorskip("transformers", reason="PyTorch is not installed: the extra models")

from transformers.models.auto.modeling_auto import MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES

from tests.integration.test_architectures import QUICK, check_architecture

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    "kind", [kind for kind in MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES if kind not in QUICK]
)
def test_every_engine_gives_transformers_logits(kind, tmp_path, capfd):
    check_architecture(kind, tmp_path, capfd)
