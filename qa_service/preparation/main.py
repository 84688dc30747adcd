"""Prepares a question-answering model for the server; the program qa-prepare-model."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from qa_service.child_program import command_of, environment_of_programs, turn_off_telemetry
from qa_service.command_line import INTERRUPTED, Parser, number
from qa_service.engine_catalogue import AUTO, precisions_of
from qa_service.errors import SetupError
from qa_service.logs import complain
from qa_service.preparation import child_main
from qa_service.preparation.prepare import PrepareArgs, prepare
from qa_service.preparation.sentence_encoder import prepare_encoder

ENCODER = "encoder"


def main(arguments: Sequence[str] | None = None) -> int:
    turn_off_telemetry()
    try:
        flags = vars(_parser().parse_args(arguments))
        wants_encoder = flags.pop("encoder")
        args = PrepareArgs(**flags)
        if args.model == ENCODER:
            prepare_encoder(args.output_dir)
        elif wants_encoder:
            return _prepare_both(args)
        else:
            prepare(args)
    except SetupError as error:
        complain(error)
        return error.exit_code
    except OSError as error:
        complain(f"the model cannot be written: {error.strerror or error}")
        return SetupError.exit_code
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    return 0


def _prepare_both(args: PrepareArgs) -> int:
    """Prepares a model, and the encoder in another process meanwhile; returns the exit code."""
    command = command_of(child_main.__name__, child_main.STANDARD, str(os.getpid()))
    command += ["--model", ENCODER, "--output_dir", str(args.output_dir)]
    # A Ctrl-C at the terminal is this process's to handle.
    environment = environment_of_programs()
    with subprocess.Popen(command, env=environment, start_new_session=True) as encoder:
        try:
            prepare(args)
        except KeyboardInterrupt:
            encoder.kill()  # the next run removes what it has begun
            raise
    return encoder.returncode


def _parser() -> argparse.ArgumentParser:
    defaults = PrepareArgs()
    parser = Parser(
        description="Prepares a question-answering model for the server: writes it for PyTorch and "
        "for ONNX Runtime, and checks that both give the same answers.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--model",
        default=defaults.model,
        metavar="builtin|builtin-base|encoder|HUB_ID|DIRECTORY",
        help="a model that ships with the project (builtin-base is larger and slower, and fetches "
        "404 MB), what --encoder adds and no model, one on the Hugging Face hub (for example "
        "deepset/bert-base-cased-squad2), or one in a local directory, which may also hold an "
        "adapter over any of these",
    )
    where = "where the model's folder goes: saved_models, if the working directory has it, else "
    where += "qa-server in the user's folder of data"
    add("--output_dir", type=Path, default=defaults.output_dir, help=where)
    add(
        "--can_abstain",
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="whether the model may answer that the text holds no answer; if not given, the "
        "model's reading.json says so, or its name (squad2, squad_v2), or it is asked",
    )
    add(
        "--null_threshold",
        type=number,
        default=argparse.SUPPRESS,
        metavar="LOGITS",
        help="let the model abstain unless an answer's logits exceed the null answer's by this "
        "much; if not given, the model's own or 0",
    )
    also = "also write the model in this precision; fp32 is always written; auto writes int8 as "
    also += "far as the model can be had in it; int8 is for ONNX Runtime and for OpenVINO"
    add("--precision", choices=(AUTO, *precisions_of("onnx")), default=AUTO, help=also)
    encoder = (
        "also prepare the encoder that embeds the passages of collections, once for all models"
    )
    add("--encoder", action=argparse.BooleanOptionalAction, default=True, help=encoder)
    tensorrt = "also write what the server's tensorrt engine needs"
    add("--tensorrt", action="store_true", help=tensorrt)
    return parser
