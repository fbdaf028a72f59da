"""What the container file and the page about deployment say is true of the repository and of the server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from llmk.config import load
from llmk.serve.http.auth import OPEN_PATHS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/deploy.md").read_text()
IMAGE = (ROOT / "Containerfile").read_text()
DEPLOY, CORE = ROOT / "deploy", ROOT / "core/src/llmk"
INSTRUCTION = re.compile(r"^(?P<name>[A-Z]+) (?P<rest>(?:.*\\\n)*.*)$", re.M)


def instructions(name: str) -> list[str]:
    """What follows each instruction of that name."""
    return [found["rest"] for found in INSTRUCTION.finditer(IMAGE) if found["name"] == name]


def blocks(language: str) -> list[str]:
    """Fenced blocks of the page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.M | re.S)


def names(folders: list[str]) -> set[str]:
    """Names of the distributions in folders."""
    return {tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["name"] for folder in folders}


def needed(extra: str) -> set[str]:
    """What ``llmk[extra]`` installs of this repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    words = [*project["dependencies"], *extras[extra]]
    words += [
        word for each in extras[extra] if (own := re.fullmatch(r"llmk\[(\w+)\]", each)) for word in extras[own[1]]
    ]
    return {"llmk", *(re.split(r"[>=<\[]", word)[0] for word in words)}


def settings(backend: str) -> dict[str, str]:
    """What the image of a backend has, as the shell reads it."""
    script = f'. {ROOT}/deploy/images/{backend}.env; printf "%s\\n" "$WHEELS" "$INDEX" "$DEBIAN" "$PACKAGES"'
    done = subprocess.run(["sh", "-euc", f"DEBIAN= PACKAGES=; {script}"], capture_output=True, text=True, check=True)
    return dict(zip(("WHEELS", "INDEX", "DEBIAN", "PACKAGES"), done.stdout.splitlines(), strict=True))


BACKENDS = ("cpu", "cuda", "rocm", "tpu", "xpu")


def test_each_backend_has_an_image() -> None:
    assert {file.stem for file in (DEPLOY / "images").iterdir()} == set(BACKENDS)
    assert all(settings(backend)["INDEX"].startswith("https://") for backend in BACKENDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_image_has_the_wheels_of_its_extra(backend: str) -> None:
    """It names wheels as files, so that a wheel that is left out would come from an index, or not at all."""
    (built,) = [rest for rest in instructions("RUN") if "pip wheel" in rest]
    wheels = settings(backend)["WHEELS"]
    folders = built.partition("/wheels")[2].replace("\\\n", " ").replace("${WHEELS}", wheels).split()
    assert names(folders) == needed(backend)


def test_what_the_image_needs_is_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / path).exists() for path in kept)
    named = IMAGE + " ".join(settings(backend)["WHEELS"] for backend in BACKENDS)
    assert {path.split("/")[1] for path in re.findall(r"\./[\w/-]+", named)} <= kept
    assert {"LICENSE", "README.md", "constraints.txt", "deploy/images"} <= kept, "metadata and the install name them"


def test_the_image_serves_and_its_health_is_open() -> None:
    assert instructions("ENTRYPOINT") == ['["llmk"]']
    assert instructions("CMD") == ['["serve"]']
    (check,) = instructions("HEALTHCHECK")
    path = re.search(r"http://127\.0\.0\.1:8000(/\w+)", check)
    assert path
    assert path[1] in OPEN_PATHS
    variables = dict(re.findall(r"(LLMK__\w+)=(\S+)", IMAGE))
    assert load(cwd=ROOT / "docs", environ=variables).config.server.host == "0.0.0.0"


def test_defaults_that_the_page_names_are_the_servers(tmp_path: Path) -> None:
    server = load(cwd=tmp_path, environ={}).config.server
    assert f"server.keep_alive ({server.keep_alive:g})" in PAGE
    assert f"`server.drain_seconds` ({server.drain_seconds:g})" in PAGE
    assert f"`server.max_connections` ({server.max_connections:,})" in PAGE
    assert server.max_request_bytes == 16 << 20, "nginx and Caddy are configured for 16 MiB"


def test_the_configuration_is_taken(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "llmk.toml").write_text(text)
    assert load(cwd=tmp_path, environ={}).config.server.tls_certificate


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_the_unit_is_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "llmk.service").read_text()
    file = tmp_path / "llmk.service"
    file.write_text(
        text.replace("/opt/llmk/bin/llmk", shutil.which("true") or "").replace("/usr/bin/curl", "/bin/true")
    )
    done = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "llmk.service" not in done.stderr, done.stderr


def drained(seconds: float) -> bool:
    """Whether a time to stop is longer than what the server takes."""
    return seconds > load(cwd=ROOT / "docs", environ={}).config.server.drain_seconds


def test_kubernetes_objects_fit_together() -> None:
    objects = {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    assert all(one["apiVersion"] and one["metadata"]["name"] == "llmk" for one in objects.values())
    deployment, service = objects["Deployment"]["spec"], objects["Service"]["spec"]
    pod = deployment["template"]
    assert service["selector"] == deployment["selector"]["matchLabels"] == pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= ports
    probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
    assert {probe["httpGet"]["path"] for probe in probes} <= OPEN_PATHS
    assert {probe["httpGet"]["port"] for probe in probes} <= ports
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    claim = objects["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim
    assert set(re.findall(r'"(/\w+)"', instructions("VOLUME")[0])) <= {
        m["mountPath"] for m in container["volumeMounts"]
    }
    assert drained(pod["spec"]["terminationGracePeriodSeconds"])
    assert f"USER {pod['spec']['securityContext']['runAsUser']}" in IMAGE
    values = {one["name"]: one.get("value", "key") for one in container["env"]}
    assert load(cwd=ROOT / "docs", environ=values).config.server.log_format == "json"


def test_compose_services_fit_together() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    ours = {name: one for name, one in services.items() if name.startswith("llmk")}
    assert len({profile for one in ours.values() for profile in one["profiles"]}) == len(ours) == 5
    for one in ours.values():
        assert (DEPLOY / one["build"]["context"] / one["build"]["dockerfile"]).exists()
        assert set(one["build"].get("args", {})) <= {rest.partition("=")[0] for rest in instructions("ARG")}
        assert one["profiles"] == [one["build"].get("args", {}).get("BACKEND", "cpu")]
        assert drained(float(one["stop_grace_period"].rstrip("s")))
        names = {volume.split(":")[0] for volume in one["volumes"] if volume[0].isalpha()}
        assert names <= set(compose["volumes"])
    for name in ("prometheus", "grafana"):
        for volume in services[name]["volumes"]:
            source = volume.split(":/")[0]
            assert source.startswith("$") or (DEPLOY / source).exists(), source
        assert set(services[name]["profiles"]) == {profile for one in ours.values() for profile in one["profiles"]}


def dashboard() -> dict[str, Any]:
    """Grafana's."""
    found: dict[str, Any] = json.loads((DEPLOY / "grafana/llmk.json").read_text())
    return found


def expressions() -> list[str]:
    """All PromQL of the dashboard, as Prometheus gets it."""
    targets = [target for panel in dashboard()["panels"] for target in panel["targets"]]
    variables = {"$__rate_interval": "1m", "$model": ".*", "$instance": ".*"}
    found = []
    for text in (target["expr"] for target in targets):
        for name, value in variables.items():
            text = text.replace(name, value)
        found.append(text)
    assert not [text for text in found if "$" in text], "a variable is not replaced"
    return found


def test_the_dashboard_is_well_formed() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 8
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    known = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert known == {"datasource", "model", "instance"}
    provided = yaml.safe_load((DEPLOY / "grafana/dashboards.yml").read_text())["providers"][0]["options"]["path"]
    assert f"{provided}/llmk.json" in (DEPLOY / "compose.yaml").read_text()


def test_metrics_of_dashboard_and_rules_exist() -> None:
    rules = (DEPLOY / "llmk.rules.yml").read_text()
    named = set(re.findall(r"\bllmk_\w+", " ".join(expressions()) + rules))
    source = "".join((CORE / f"serve/{file}.py").read_text() for file in ("metrics/prometheus", "tenants/collector"))
    words = {word.removeprefix("llmk_") for word in re.findall(r"\w+", source)}
    plain = {re.sub(r"_(total|bucket)$", "", name.removeprefix("llmk_")) for name in named}
    assert len(plain) > 12
    assert plain <= words, plain - words


@pytest.mark.skipif(not shutil.which("promtool"), reason="there is no promtool (Debian: prometheus)")
def test_prometheus_takes_rules_configuration_and_expressions(tmp_path: Path) -> None:
    rules = [{"record": f"x:{number}", "expr": text} for number, text in enumerate(expressions())]
    (tmp_path / "dashboard.yml").write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))
    shutil.copy(DEPLOY / "llmk.rules.yml", tmp_path)
    (tmp_path / "llmk.key").write_text("key")
    config = (DEPLOY / "prometheus.yml").read_text().replace("/etc/prometheus", str(tmp_path))
    (tmp_path / "prometheus.yml").write_text(config)
    for arguments in (("rules", "llmk.rules.yml"), ("rules", "dashboard.yml"), ("config", "prometheus.yml")):
        done = subprocess.run(
            ["promtool", "check", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def objects_of(name: str) -> list[dict[str, Any]]:
    """The objects of a manifest; of KubeRay's, the pods that it would make in their place."""
    found = []
    for one in yaml.safe_load_all((DEPLOY / name).read_text()):
        if one["apiVersion"].startswith("ray.io"):
            cluster = one["spec"]["rayClusterConfig"]
            templates = [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
            found += [{"apiVersion": "v1", "kind": "Pod", **template} for template in templates]
        else:
            found.append(one)
    return found


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-replicas.yaml", "kuberay.yaml"])
def test_kubernetes_takes_the_objects(name: str) -> None:
    """By the schemas of Kubernetes 1.31, unknown fields refused."""
    for one in objects_of(name):
        kubernetes_validate.validate({**one, "metadata": {"name": "x", **one["metadata"]}}, "1.31", strict=True)


def test_a_mistake_in_an_object_is_found() -> None:
    one = objects_of("kubernetes-replicas.yaml")[0]
    one["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, "1.31", strict=True)


def test_servers_of_a_set_drain_before_they_end() -> None:
    objects = {(one["kind"], one["metadata"]["name"]): one for one in objects_of("kubernetes-replicas.yaml")}
    labels = {"app": "llmk"}
    spec = objects["StatefulSet", "llmk"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    variables = {one["name"]: one.get("value", "secret") for one in container["env"] if one["name"] != "POD_NAME"}
    config = load(cwd=ROOT / "docs", environ=variables | {"LLMK__SERVER__API_KEYS": "key"}).config
    pause = int(re.search(r"sleep\((\d+)\)", container["lifecycle"]["preStop"]["exec"]["command"][-1])[1])  # type: ignore[index]
    assert pod["terminationGracePeriodSeconds"] > pause + config.server.drain_seconds
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert config.events.endpoint.endswith(f":{ports['kv-events']}")
    assert config.events.replay_endpoint.endswith(f":{ports['kv-replay']}")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in OPEN_PATHS
    assert objects["Service", spec["serviceName"]]["spec"]["clusterIP"] == "None"
    for kind, name in (("Service", "llmk"), ("Service", "llmk-pods")):
        assert objects[kind, name]["spec"]["selector"] == spec["template"]["metadata"]["labels"] == labels
        assert {port["targetPort"] for port in objects[kind, name]["spec"]["ports"]} <= set(ports)
    budget = objects["PodDisruptionBudget", "llmk"]["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)


def test_the_ray_service_builds_an_application_that_there_is() -> None:
    service, budget = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, _, name = application["import_path"].partition(":")
    source = ROOT / "plugins/ray/src" / f"{module.replace('.', '/')}.py"
    assert f"def {name}(" in source.read_text()
    fields = re.findall(r"^    (\w+): .*Field\(", source.read_text(), flags=re.M)
    assert set(application["args"]) <= set(fields)
    (workers,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert workers["template"]["spec"]["terminationGracePeriodSeconds"] > application["args"]["drain_seconds"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= workers["template"]["metadata"]["labels"].items()
    assert (workers["minReplicas"], workers["maxReplicas"]) == tuple(
        application["args"][f"{bound}_replicas"] for bound in ("min", "max")
    )
