"""Trains the models of the project: SQuAD files in, an adapter and its metrics out."""

import sys

from qa_service.programs.missing import advice

try:
    from training.finetune_model_main import main
except ModuleNotFoundError as error:
    sys.exit(advice(error))

if __name__ == "__main__":
    sys.exit(main())
