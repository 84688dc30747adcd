"""What docker/ says, held against the files and the imports that it speaks of."""

import json
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from harness.models import make_manifest
from harness.server import ROOT
from qa_service.instance.model_folder.manifest import save_manifest
from qa_service.programs.jobs.jobs_options import GatewayOptions, parse
from tests.programs import fail_to_start
from tests.unit.repository.test_structure import PACKAGE, SERVING, files_of, modules

DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
LEFT_OUT = {
    "shtab",  # completion of flags, where it is installed
    *(
        "opentelemetry",
        "requests",
        "torch",
        "transformers",
        "safetensors",
        "openvino",
        "ray",
        "pynvml",
    ),
    *("opensearchpy", "pypdfium2", "markdown_it", "mdit_py_plugins", "selectolax", "pptx"),
}
"""Imported only where they are used: by engines, through Ray, with GPUs, to export traces, where
collections are made or are a cluster's.
"""


def instructions(dockerfile: Path, name: str) -> list[str]:
    """The arguments of an instruction, wherever it stands, continued lines joined."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return re.findall(rf"^{name} +(.*)$", text, re.MULTILINE)


def requirements(extra: str | None = None) -> dict[str, Requirement]:
    """What pyproject.toml asks for, by name: for an extra with those it names, or for everyone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    found = {}
    for one in map(Requirement, lines):
        if one.name == "qa-server":
            for its in one.extras:
                found |= requirements(its)
        else:
            found[one.name] = one
    return found


def sources(dockerfile: Path) -> list[str]:
    """What is copied from the repository, not from another stage."""
    copies = [words.split() for words in instructions(dockerfile, "COPY")]
    return [source for words in copies if "--from=prepare" not in words for source in words[:-1]]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_each_copied_path_exists_and_is_sent_to_the_builder(dockerfile):
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    sent = [line[1:] for line in lines if line.startswith("!")]
    for source in sources(dockerfile):
        assert (ROOT / source).exists(), source
        parts = ["/".join(source.split("/")[: n + 1]) for n in range(source.count("/") + 1)]
        allowed = any(fnmatch(part, pattern) for part in parts for pattern in sent)
        assert allowed or any(pattern.startswith(f"{source}/") for pattern in sent), source


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_the_server_is_pid_1_and_runs_unprivileged(dockerfile):
    (entry,) = instructions(dockerfile, "ENTRYPOINT")
    assert json.loads(entry)[0] == "/opt/serve/bin/qa-server"
    (health,) = instructions(dockerfile, "HEALTHCHECK")
    assert "--health" in json.loads(health.partition("CMD ")[2])
    (user,) = instructions(dockerfile, "USER")
    assert int(user.split(":")[0]) > 0


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_the_base_is_pinned_to_a_patch_release(dockerfile):
    (base,) = [words for words in instructions(dockerfile, "ARG") if words.startswith("BASE_IMAGE")]
    assert re.fullmatch(r"BASE_IMAGE=\S+:\d+\.\d+\.\d+-\S+", base)


def test_what_serving_imports_is_what_the_cpu_image_installs():
    programs = [PACKAGE / "server" / "main.py", PACKAGE / "programs" / "client_main.py"]
    found = set().union(*map(modules, [*programs, *(p for r in SERVING for p in files_of(r))]))
    foreign = found - sys.stdlib_module_names - {"qa_service"} - LEFT_OUT
    assert foreign | {"tqdm"} == {*requirements(), *requirements("serve")}  # tqdm: qa-stress-test


def test_the_versions_that_are_installed_are_within_their_ranges():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in lines if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in [None, *project["optional-dependencies"]]:
        for name, requirement in requirements(extra).items():
            if name in versions:
                assert versions[name] in requirement.specifier, (extra, name)
    engines = requirements("serve-gpu")["onnxruntime-gpu"], requirements("serve")["onnxruntime"]
    assert engines[0].specifier == engines[1].specifier


def test_an_application_that_takes_the_clients_gets_msgspec_alone():
    assert [*requirements()] == ["msgspec"]
    assert not [one for one in requirements().values() if "==" in str(one.specifier)]


def test_an_engine_missing_in_the_image_is_reported_in_one_line(tmp_path):
    save_manifest(tmp_path, make_manifest("m", files={"model.safetensors": ""}))
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    flags = ("--model", tmp_path, "--inference_engine_type", "pytorch", "--log_level", "error")
    ended = fail_to_start(*flags, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert ended.stderr.endswith(
        "cannot start: the pytorch engine cannot be imported: No module named 'torch'\n"
    )


@pytest.mark.parametrize(
    ("linter", "files"),
    [("hadolint", DOCKERFILES), ("shellcheck", [*ROOT.glob("docker/*.sh"), ROOT / ".ci" / "run"])],
)
def test_linters_report_nothing(linter, files):
    program = Path(sys.executable).with_name(linter)
    if not program.exists():
        pytest.skip(f"{linter} has no package for this platform")
    assert len(files) == 2
    assert subprocess.run([program, *files], check=False).returncode == 0


def test_compose_files_of_broker_server_and_gateway_agree():
    yaml = pytest.importorskip("yaml")
    services = {}
    for name in ("compose.yaml", "compose.jobs.yaml"):
        services |= yaml.safe_load((ROOT / "docker" / name).read_text())["services"]
    gateway = services["gateway"]
    assert set(gateway["depends_on"]) <= services.keys()
    _, options = parse("", gateway["command"])
    assert isinstance(options, GatewayOptions)
    assert options.asking.host in services
    assert gateway["ports"] == [f"127.0.0.1:{options.metrics_port}:{options.metrics_port}"]
    assert int(gateway["stop_grace_period"].removesuffix("s")) > options.drain_timeout_s
    copied = re.findall(r"^ *COPY (.*) \S+$", gateway["build"]["dockerfile_inline"], re.MULTILINE)
    assert all((ROOT / source).exists() for line in copied for source in line.split())
