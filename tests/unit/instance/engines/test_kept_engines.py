"""What TensorRT keeps: by hash, by model, and for one instance at a time."""

import multiprocessing
import os

import pytest

from harness.process import GIVE_UP_S
from qa_service.errors import SetupError
from qa_service.instance.engines.buckets import Bucket, BucketedEngine, BucketGrid, Program
from qa_service.instance.engines.kept_engines import KeptEngines


def compile_into(folder, model="hash"):
    """What a start does; returns whether an earlier one has compiled it."""
    kept = KeptEngines(folder, model)
    with kept.held():
        if not kept.are_old:
            for name in ("graph_0.engine", "graph_0.profile", "sm90.timing"):
                (folder / name).write_bytes(name.encode() * 1000)
    return kept.are_old


def test_the_next_start_has_what_the_last_one_compiled(tmp_path, caplog):
    assert [compile_into(tmp_path / "fp16") for _ in range(3)] == [False, True, True]
    assert not caplog.messages


def spoil(folder):
    path = folder / "graph_0.engine"
    path.write_bytes(path.read_bytes()[:-1] + b"X")


@pytest.mark.parametrize(
    "change",
    [
        spoil,
        lambda folder: (folder / "graph_0.engine").unlink(),
        lambda folder: (folder / "another.engine").write_bytes(b"1"),
        lambda folder: (folder / "hashes.json").unlink(),
        lambda folder: (folder / "hashes.json").write_bytes(b"{"),
    ],
    ids=["damaged", "gone", "unknown", "without hashes", "damaged hashes"],
)
def test_what_is_not_as_it_was_written_is_compiled_again(tmp_path, change, caplog):
    compile_into(tmp_path)
    change(tmp_path)
    assert not compile_into(tmp_path)
    assert "a file is damaged, or of another model" in caplog.text
    assert compile_into(tmp_path)


def test_a_file_that_rots_while_it_is_used_keeps_the_hash_of_what_was_written(tmp_path):
    compile_into(tmp_path)
    path = tmp_path / "graph_0.engine"
    with KeptEngines(tmp_path, "hash").held():
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        spoil(tmp_path)
        os.utime(path, ns=times)
    assert not compile_into(tmp_path)


def test_the_engines_of_another_model_are_not_taken(tmp_path):
    compile_into(tmp_path)
    assert not compile_into(tmp_path, "another")
    assert compile_into(tmp_path, "another")


def test_a_start_that_fails_leaves_nothing_that_the_next_one_takes(tmp_path):
    with pytest.raises(OSError, match="no GPU"), KeptEngines(tmp_path, "hash").held():
        (tmp_path / "half.engine").write_bytes(b"1")
        raise OSError("no GPU")
    assert not compile_into(tmp_path)
    assert not (tmp_path / "half.engine").exists()


def no_program(bucket: Bucket) -> Program:
    raise AssertionError(f"{bucket} is not run")


@pytest.mark.parametrize("are_old", [True, False])
def test_all_goes_with_an_engine_that_computes_wrongly(tmp_path, are_old, caplog):
    if are_old:
        compile_into(tmp_path)
    kept = KeptEngines(tmp_path, "hash")
    with kept.held():
        (tmp_path / "graph_1.engine").write_bytes(b"1")
    grid = BucketGrid(1, 16, 16)
    engine = BucketedEngine(grid, [], 0, no_program, device="cuda", runtime="", kept=kept)
    assert engine.forget_kept() == are_old
    assert f"an engine computes wrongly; all that TensorRT keeps in {tmp_path} is" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def take_turn(folder, turns):
    turns.put("waits")
    with KeptEngines(folder, "hash").held():
        turns.put("enters")


def test_instances_take_turns(tmp_path):
    context = multiprocessing.get_context("spawn")
    turns = context.Queue()
    with KeptEngines(tmp_path, "hash").held():
        other = context.Process(target=take_turn, args=(tmp_path, turns))
        other.start()
        assert turns.get(timeout=GIVE_UP_S) == "waits"
        other.join(timeout=0.2)
        assert turns.empty()
        assert other.is_alive()
    assert turns.get(timeout=GIVE_UP_S) == "enters"
    other.join()


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with (
        pytest.raises(SetupError, match="cannot be kept"),
        KeptEngines(tmp_path / "file" / "fp16", "hash").held(),
    ):
        pass
