"""deploy/kubernetes: every overlay and component builds, is valid, and fits the server."""

import json
import shutil

import pytest

from harness.server import ROOT
from qa_service.server.config import find_config
from tests.programs import run

# Both come with the extra `test`, the second for the sake of the first.
yaml = pytest.importorskip("yaml")

KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())


def kustomize(folder) -> list[dict]:
    done = run("kubectl", "kustomize", folder)
    if "unknown" in done.stderr or "unmarshal" in done.stderr:
        pytest.skip(f"kubectl is too old for these files: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


pytestmark = pytest.mark.skipif(
    not shutil.which("kubectl"), reason="kubectl 1.21 or later is not installed"
)


@pytest.fixture(scope="module", params=OVERLAYS)
def built(request) -> dict[str, dict]:
    """An overlay's resources by kind and name."""
    resources = kustomize(KUBERNETES / "overlays" / request.param)
    return {f"{item['kind']} {item['metadata']['name']}": item for item in resources}


def validate(resource: dict) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(resource, version, strict=True)


def container_of(built):
    [container] = built["Deployment qa-server"]["spec"]["template"]["spec"]["containers"]
    return container


def test_the_built_manifests_pass_the_schemas_of_kubernetes(built):
    for item in built.values():
        validate(item)


def test_the_deployment_is_complete(built):
    assert set(built) == {
        "Deployment qa-server",
        "Service qa-server",
        "Service qa-server-each",
        "PodDisruptionBudget qa-server",
        "HorizontalPodAutoscaler qa-server",
        "NetworkPolicy qa-server",
    }


def test_the_server_understands_its_flags(built):
    config = find_config(container_of(built)["args"]).read()
    grace_s = built["Deployment qa-server"]["spec"]["template"]["spec"][
        "terminationGracePeriodSeconds"
    ]
    assert config.server.drain_delay_ms > 0
    assert grace_s > (config.server.drain_delay_ms + config.server.drain_timeout_ms) / 1e3


def test_pods_have_minimal_rights(built):
    pod = built["Deployment qa-server"]["spec"]["template"]["spec"]
    container = container_of(built)
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert built["NetworkPolicy qa-server"]["spec"]["egress"] == []


def test_all_selectors_name_the_same_pods(built):
    """A label that kustomize adds to selectors would be asked of a network policy's peers too."""
    label = {"app.kubernetes.io/name": "qa-server"}
    template = built["Deployment qa-server"]["spec"]["template"]
    assert label.items() <= template["metadata"]["labels"].items()
    assert built["Service qa-server"]["spec"]["selector"] == label
    assert built["Service qa-server-each"]["spec"]["selector"] == label
    assert built["PodDisruptionBudget qa-server"]["spec"]["selector"] == {"matchLabels": label}
    policy = built["NetworkPolicy qa-server"]["spec"]
    assert policy["podSelector"] == {"matchLabels": label}
    [clients, _] = policy["ingress"][0]["from"]
    assert clients == {"podSelector": {"matchLabels": {"qa-server-client": "true"}}}


def test_probes_ask_the_open_paths(built):
    container = container_of(built)
    paths = {
        probe: container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert paths == {
        "startupProbe": "/v2/health/ready",
        "readinessProbe": "/v2/health/ready",
        "livenessProbe": "/v2/health/live",
    }


def test_the_autoscalers_metric_is_the_one_that_the_adapter_makes(built):
    rules = yaml.safe_load((KUBERNETES / "prometheus_adapter.yaml").read_text())["rules"]
    [metric] = built["HorizontalPodAutoscaler qa-server"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rules[0]["name"]["as"]


@pytest.fixture
def with_component(tmp_path):
    """Builds the CPU overlay with a component."""

    def build(component: str) -> dict[str, dict]:
        folder = tmp_path / "kubernetes"
        shutil.copytree(KUBERNETES, folder)
        overlay = folder / "overlays" / "cpu" / "kustomization.yaml"
        kustomization = yaml.safe_load(overlay.read_text())
        kustomization["components"] = [f"../../components/{component}"]
        overlay.write_text(json.dumps(kustomization))
        return {item["kind"]: item for item in kustomize(overlay.parent)}

    return build


class TestComponents:
    def test_keda_takes_the_place_of_the_autoscaler(self, with_component):
        built = with_component("keda")
        assert built["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == "qa-server"
        assert "HorizontalPodAutoscaler" not in built

    def test_the_monitor_selects_one_of_the_two_services(self, with_component):
        [endpoint] = with_component("service_monitor")["ServiceMonitor"]["spec"]["endpoints"]
        assert (endpoint["port"], endpoint["path"]) == ("qa", "/metrics")
        assert endpoint["relabelings"][0]["regex"] == "qa-server"

    def test_tls_and_tokens_come_from_a_secret(self, with_component):
        deployment = with_component("tls_and_tokens")["Deployment"]
        validate(deployment)
        container = container_of({"Deployment qa-server": deployment})
        config = find_config(container["args"]).read()
        assert str(config.tls.tls_cert) == "/secrets/server.pem"
        assert str(config.auth.auth_token_file) == "/secrets/tokens"
        assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"

    def test_collections_come_from_a_volume_that_servers_cannot_write(self, with_component):
        built = with_component("collections")
        validate(built["PersistentVolumeClaim"])
        deployment = built["Deployment"]
        validate(deployment)
        container = container_of({"Deployment qa-server": deployment})
        config = find_config(container["args"]).read()
        [mount] = [one for one in container["volumeMounts"] if one["name"] == "collections"]
        [volume] = [
            one
            for one in deployment["spec"]["template"]["spec"]["volumes"]
            if one["name"] == "collections"
        ]
        claim = volume["persistentVolumeClaim"]
        assert str(config.repository.collections_dir) == mount["mountPath"]
        assert mount["readOnly"]
        assert claim == {
            "claimName": built["PersistentVolumeClaim"]["metadata"]["name"],
            "readOnly": True,
        }
