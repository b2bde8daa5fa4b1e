"""Train on two nodes without a scheduler, over a lost process, cable or node; and the command ``network``."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import cluster
import pytest
from baking import Target, missing_facility
from installing import Installed, Installer
from launching import (
    SYNTHETIC,
    OnNode,
    Pods,
    is_evaluated,
    nothing_runs_on_the_nodes,
    wait_for,
    waiting_for_data,
    worker_on,
)

pytestmark = [pytest.mark.executed, pytest.mark.cluster, pytest.mark.usefixtures("two_nodes")]

LONG = [*SYNTHETIC, "--train.epochs", "16"]
PORT = "29500"
# Seconds after which a process stops waiting for a lost one.
TIMEOUT = ["--distributed.timeout_s", "15"]


Start = Callable[..., OnNode]


@pytest.fixture(scope="module")
def project(install: Installer, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """One installation for all tests here: each writes its own run directory."""
    folder = tmp_path_factory.mktemp("nodes")
    return waiting_for_data(install(Target("cpu", "gloo", "torchrun"), folder, use_diagnosis=True))


@pytest.fixture
def start(project: Installed, tmp_path: Path) -> Iterator[Start]:
    """Start commands on nodes; at the end of the test, no process may be left."""

    def start(node: str, *command: str, **variables: str) -> OnNode:
        number = len(list(tmp_path.iterdir()))
        meeting = {"MASTER_ADDR": "node1", "MASTER_PORT": PORT}
        return OnNode(project, node, command, tmp_path / f"{number}-{node}.log", {**meeting, **variables})

    try:
        yield start
        wait_for(nothing_runs_on_the_nodes, "every process to end", 40)
    finally:
        for node in cluster.NODES:
            for pid in cluster.commands(node):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def train_on(start: Start, node: str, run: str, *settings: str, **variables: str) -> OnNode:
    variables = {"NNODES": "2", "NPROC_PER_NODE": "1", **variables}
    return start(node, "scripts/train.sh", "--train.run_dir", run, *TIMEOUT, *settings, **variables)


@pytest.mark.seldom
def test_two_nodes_train(project: Installed, start: Start) -> None:
    """Two processes on each node; the tests below use one."""
    both = [train_on(start, node, "runs/two", NPROC_PER_NODE="2") for node in cluster.NODES]
    for one in both:
        assert one.end() == 0, one.said()
    summary = project.read_json("runs/two/summary.json")
    assert (summary["world_size"], summary["nnodes"]) == (4, 2)
    assert summary["val_accuracy"] >= 0.97
    assert summary["weights_difference"] == 0.0


def test_a_lost_process_costs_one_epoch_at_most(project: Installed, start: Start) -> None:
    first, second = (train_on(start, node, "runs/lost", *LONG) for node in cluster.NODES)
    wait_for(lambda: "epoch 2  " in first.said() + second.said(), "the training")
    kill_worker_on("node2")
    assert first.end() == 0, first.said()
    assert second.end() == 0, second.said()
    assert "resumed from" in first.said() + second.said()
    assert_every_epoch_once(project, "runs/lost")


def test_a_cut_cable_leaves_one_node_training_until_it_is_fixed(project: Installed, start: Start) -> None:
    elastic = {"NNODES": "1:2", "RDZV_CONF": "last_call_timeout=3"}
    first, second = (train_on(start, node, "runs/cut", *LONG, **elastic) for node in cluster.NODES)
    wait_for(lambda: "processes: 2" in first.said() and "epoch 2  " in first.said(), "the training of two")
    cluster.cut("node2")
    try:
        wait_for(lambda: "processes: 1" in first.said(), "the first node to go on alone")
    finally:
        cluster.restore("node2")
    if second.process.poll() is not None:
        # torchrun may give up when it cannot reach the other node; its user starts it again.
        second = train_on(start, "node2", "runs/cut", *LONG, **elastic)
    assert first.end() == 0, first.said()
    assert second.end() == 0, second.said()
    assert first.said().rindex("processes: 2") > first.said().rindex("processes: 1"), first.said()
    assert_every_epoch_once(project, "runs/cut")


@pytest.mark.seldom
def test_a_node_that_comes_late_joins(project: Installed, start: Start) -> None:
    elastic = {"NNODES": "1:2", "RDZV_CONF": "last_call_timeout=3"}
    first = train_on(start, "node1", "runs/late", *LONG, **elastic)
    wait_for(lambda: "epoch 2  " in first.said(), "the first node")
    assert "processes: 1" in first.said()
    second = train_on(start, "node2", "runs/late", *LONG, **elastic)
    assert first.end() == 0, first.said()
    assert second.end() == 0, second.said()
    assert "processes: 2" in first.said()
    assert_every_epoch_once(project, "runs/late")


@pytest.mark.parametrize(
    ("backend", "launcher", "mpi"),
    [
        ("gloo", "mpirun", "openmpi"),
        pytest.param("gloo", "mpirun", "mpich", marks=pytest.mark.seldom),
        ("horovod", "horovodrun", ""),
    ],
)
def test_one_command_starts_both_nodes_by_ssh(
    install: Installer, backend: str, launcher: str, mpi: str, tmp_path: Path
) -> None:
    if not (cluster.COMMANDS / "ssh").exists():
        missing_facility("sshd", "apt-get install openssh-server")
    project = install(Target("cpu", backend, launcher), tmp_path, mpi=mpi)
    (project.path / "hosts").write_text("".join(f"{node}\n" for node in cluster.NODES))
    variables = {"NNODES": "2", "NPROC_PER_NODE": "1", "HOSTFILE": "hosts", "HOSTS": "node1:1,node2:1"}
    smoke = ["scripts/train.sh", "--config", "configs/smoke.yaml"]
    # Over the named interface; the second run finds it itself.
    named = {**variables, "HOROVOD_GLOO_IFACE": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    one = OnNode(project, "node1", smoke, tmp_path / "log", named)
    wait_for(lambda: worker_on("node2"), "the other node's process")
    assert one.end() == 0, one.said()
    summary = project.read_json("runs/smoke/summary.json")
    assert (summary["world_size"], summary["nnodes"]) == (2, 2)
    assert summary["weights_difference"] == 0.0

    long = ["scripts/train.sh", "--train.run_dir", "runs/killed", *LONG]
    other = OnNode(project, "node1", long, tmp_path / "long", variables)
    wait_for(lambda: is_evaluated(project.path / "runs/killed"), "the first epoch")
    other.process.kill()
    wait_for(nothing_runs_on_the_nodes, "every process to end", 40)


def test_network_finds_nodes_that_reach_each_other(start: Start) -> None:
    both = [start(node, *network()) for node in cluster.NODES]
    for one in both:
        assert one.end(90) == 0, one.said()
        places = ", ".join(f"{node} {cluster.address(node)}" for node in cluster.NODES)
        assert one.said() == f"every node reaches every other one: {places}\n"


def test_network_finds_a_host_name_that_is_loopback(start: Start, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 node2\n{cluster.address('node1')} node1\n")
    bound = ["sh", "-c", f'mount --bind {hosts} /etc/hosts; exec "$@"', "sh"]
    one = start("node2", *bound, *network())
    assert one.end(60) == 1
    assert one.said() == (
        "error: node2 resolves to 127.0.1.1, which other nodes cannot reach. Make host names resolve to addresses that other "
        "nodes reach, set GLOO_SOCKET_IFNAME, or open the firewall.\n"
    )


def test_network_finds_the_wrong_interface_and_a_bad_port(start: Start) -> None:
    ip = ["ip", "-n", cluster.namespace("node2")]
    subprocess.run([*ip, "link", "add", "other0", "type", "veth", "peer", "name", "other1"], check=True)
    try:
        subprocess.run([*ip, "addr", "add", "192.0.2.2/24", "dev", "other0"], check=True)
        subprocess.run([*ip, "link", "set", "other0", "up"], check=True)
        first = start("node1", *network())
        second = start("node2", *network(), GLOO_SOCKET_IFNAME="other0")
        for one in (first, second):
            assert one.end(90) == 1
            assert "error: node1 cannot reach node2 at 192.0.2.2. Make host names" in one.said()
            assert one.said().count("\n") == 1
    finally:
        subprocess.run([*ip, "link", "del", "other0"], check=True)
    none = start("node2", *network(), GLOO_SOCKET_IFNAME="eth7")
    assert none.end(60) == 1
    assert "GLOO_SOCKET_IFNAME eth7 has no IPv4 address. Use one of lo, " in none.said()
    nowhere = start("node2", *network(), MASTER_PORT="99999")
    assert nowhere.end(60) == 2
    assert nowhere.said() == "error: MASTER_PORT 99999 is not a port. Set it to 29500, for example.\n"


def test_network_finds_a_closed_port_and_a_missing_node(start: Start) -> None:
    # Like a firewall that drops packets.
    first_node = cluster.address("node1")
    ip = ["ip", "-n", cluster.namespace("node2")]
    subprocess.run([*ip, "route", "add", "blackhole", f"{first_node}/32"], check=True)
    try:
        first, second = (start(node, *network(), *TIMEOUT) for node in cluster.NODES)
        assert second.end(150) == 1
        assert (
            f"node2 cannot reach {first_node}:29500 within 15 s. Start this on node1 too, and"
            in second.said()
        )
        assert first.end(150) == 1
        assert "1 of 2 nodes came within 15 s. Start this on each of them." in first.said()
    finally:
        subprocess.run([*ip, "route", "del", "blackhole", f"{first_node}/32"], check=True)


def network() -> list[str]:
    return ["python3", "-m", "my_ddl_project", "network", "--nnodes", "2"]


@pytest.mark.parametrize("manifest", ["trainjob.yaml", "job.yaml"])
def test_the_command_of_a_manifest_trains_and_outlives_a_lost_process(
    install: Installer, manifest: str, tmp_path: Path
) -> None:
    """One node for each pod, with the variables and host names that the controller sets."""
    project = waiting_for_data(install(Target("cpu", "gloo", "kubernetes"), tmp_path))
    pods = Pods(project, manifest, *TIMEOUT, *LONG)
    try:
        wait_for(lambda: "epoch 2  " in pods.said(), "the training")
        kill_worker_on("node2")
    finally:
        pods.succeed()
    summary = project.read_json(f"runs/{pods.name}/summary.json")
    assert (summary["world_size"], summary["nnodes"]) == (2, 2)
    assert summary["resumed_from"]
    assert_every_epoch_once(project, f"runs/{pods.name}")
    wait_for(nothing_runs_on_the_nodes, "every process to end", 40)


def kill_worker_on(node: str) -> None:
    pid = worker_on(node)
    assert pid, f"nothing trains on {node}"
    os.kill(pid, signal.SIGKILL)


def assert_every_epoch_once(project: Installed, run: str) -> None:
    """A resumed run has the records of an undisturbed one."""
    assert project.epochs(run) == list(range(1, 17))
    assert project.read_json(f"{run}/summary.json")["weights_difference"] == 0.0
