"""The PyTorch engine: the model as `transformers` loads it."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForQuestionAnswering
from transformers.utils.logging import disable_progress_bar

from qa_service.engines import EngineConfig
from qa_service.engines.base import Engine, FloatArray, Int64Array, describe_cpu
from qa_service.errors import SetupError
from qa_service.manifest import Manifest


class PyTorchEngine(Engine):
    """Runs a prepared model's `model.safetensors`.

    Raises:
        SetupError: `transformers` cannot load the folder, or another precision than fp32 is asked
            for.
    """

    def __init__(self, model_dir: Path, manifest: Manifest, config: EngineConfig) -> None:
        if config.precision != "fp32":
            raise SetupError(
                f"the pytorch engine has no {config.precision}; "
                "use --inference_engine_type onnx or --precision fp32"
            )
        torch.set_num_threads(config.intra_op_num_threads)
        disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            model = AutoModelForQuestionAnswering.from_pretrained(model_dir, local_files_only=True)
        except (OSError, ValueError, SafetensorError) as error:
            reason = str(error).partition("\n")[0]
            raise SetupError(f"transformers cannot load the model: {reason}") from None
        self._model = model.eval()
        self._inputs = manifest.inputs
        self.runtime = f"torch {torch.__version__}, {describe_cpu(config.intra_op_num_threads)}"

    @torch.inference_mode()
    def logits(
        self, input_ids: Int64Array, attention_mask: Int64Array, token_type_ids: Int64Array
    ) -> tuple[FloatArray, FloatArray]:
        """See `Engine.logits`."""
        given = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
        }
        output = self._model(**{name: torch.from_numpy(given[name]) for name in self._inputs})
        return output.start_logits.float().numpy(), output.end_logits.float().numpy()
