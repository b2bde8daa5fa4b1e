"""A cluster of two nodes on this machine: ``nox -s cluster -- up``, ``run NODE COMMAND ...``, ``status``, ``down``.

Every node has its own network, host name and host list, joined by a virtual switch whose cables can be cut; files are
shared, as on a real cluster. With Slurm installed, a real one runs on the nodes. Linux only, and needs root: it makes
network namespaces, which ``down`` removes.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# Tests that run beside each other have a cluster each: pytest-xdist's worker gw1 has number 1.
NUMBER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
STATE = Path(f"/run/ddl-template-cluster{NUMBER or ''}")
NODES = ("node1", "node2")
SWITCH = f"ddl{NUMBER}"
NETWORK = f"10.77.{NUMBER}"
# The machine itself, where the jobs are submitted from.
GATEWAY = f"{NETWORK}.254"
SLURM_CONF = STATE / "slurm.conf"
LIMIT_S = 30.0
# The start of 2026: Slurm counts jobs to 67 million, in steps of two seconds for four years.
NUMBERS_SINCE = 1767225600
SLURM_PACKAGES = "munge slurm-wlm slurmctld slurmd slurm-client libpmix-dev"
# On a node's PATH: an ssh that logs in to the other one.
COMMANDS = STATE / "bin"


class Missing(Exception):
    """This machine cannot be a cluster; the message says what to do."""


def address(node: str) -> str:
    """Return the address of a node."""
    return f"{NETWORK}.{NODES.index(node) + 1}"


def namespace(node: str) -> str:
    """Return the network namespace of a node."""
    return f"{SWITCH}-{node}"


def cable(node: str) -> str:
    """Return the device at the switch's end of a node's network cable."""
    return f"{SWITCH}-{NODES.index(node) + 1}"


def enter(node: str) -> list[str]:
    """Return what to put before a command that is to run on ``node``.

    The command replaces it: its process is the command's own.
    """
    script = f"mount --bind {STATE}/hosts /etc/hosts; mount --bind {STATE}/own-{node} {STATE}/own; "
    script += f'hostname {node}; export PATH={COMMANDS}:$PATH; exec "$@"'
    inside = ["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-ec", script, "sh"]
    return ["nsenter", f"--net=/run/netns/{namespace(node)}", *inside]


def check(slurm: bool) -> None:
    """Raise Missing if the cluster cannot be made here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Missing("a cluster on this machine needs Linux and root: sudo nox -s cluster -- up")
    if not shutil.which("ip"):
        raise Missing("ip is missing: apt-get install iproute2")
    if slurm and not (shutil.which("slurmctld") and shutil.which("slurmd") and shutil.which("munged")):
        raise Missing(f"Slurm is missing: apt-get install --no-install-recommends {SLURM_PACKAGES}")


def up(slurm: bool) -> None:
    """Make what is not there yet; once made, this changes nothing."""
    check(slurm)
    STATE.mkdir(mode=0o755, exist_ok=True)
    names = "".join(f"{address(node)} {node}\n" for node in NODES)
    # What Slurm's PMIx keeps for a job must not be shared: here, each node sees its own.
    for folder in ("own", *(f"own-{node}" for node in NODES)):
        (STATE / folder).mkdir(exist_ok=True)
    (STATE / "hosts").write_text(f"127.0.0.1 localhost\n{names}{GATEWAY} {os.uname().nodename}\n")
    if not Path("/sys/class/net", SWITCH).exists():
        _ip("link", "add", SWITCH, "type", "bridge")
        _ip("addr", "add", f"{GATEWAY}/24", "dev", SWITCH)
        _ip("link", "set", SWITCH, "up")
    for node in NODES:
        space = namespace(node)
        if Path("/run/netns", space).exists():
            continue
        _ip("netns", "add", space)
        _ip("link", "add", cable(node), "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", cable(node), "master", SWITCH, "up")
        _ip("-n", space, "addr", "add", f"{address(node)}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "link", "set", "lo", "up")
    if shutil.which("sshd"):
        _ssh_up()
    if slurm:
        _slurm_up()


def down() -> None:
    """End what the nodes run and remove them."""
    of_nodes = [f"{daemon}-{node}" for daemon in ("slurmd", "sshd") for node in NODES]
    for name in (*of_nodes, "slurmctld", "munged"):
        _stop(name)
    for node in NODES:
        # Its cable first: the kernel removes it with its node, at a time of its own.
        _unplug(cable(node))
        if Path("/run/netns", namespace(node)).exists():
            for pid in processes(node):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _ip("netns", "del", namespace(node))
    _unplug(SWITCH)
    shutil.rmtree(STATE, ignore_errors=True)


def _unplug(device: str) -> None:
    try:
        if Path("/sys/class/net", device).exists():
            _ip("link", "del", device)
    except RuntimeError:
        if Path("/sys/class/net", device).exists():
            raise


def processes(node: str) -> list[int]:
    """Return the processes that run on ``node``."""
    done = subprocess.run(
        ["ip", "netns", "pids", namespace(node)], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return [int(pid) for pid in done.stdout.split()]


def commands(node: str) -> dict[int, str]:
    """Return the processes that run on ``node``, with their command lines; the daemons of the cluster aside."""
    lines = {pid: command_line(pid) for pid in processes(node)}
    return {pid: line for pid, line in lines.items() if line and not line.startswith(("slurm", "sshd"))}


def command_line(pid: int) -> str:
    """Return the words of a process, or nothing if it has just ended."""
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace").strip()


def cut(node: str) -> None:
    """Pull the network cable of ``node``."""
    _ip("link", "set", cable(node), "down")


def restore(node: str) -> None:
    """Plug the network cable of ``node`` in again."""
    _ip("link", "set", cable(node), "up")


def crash(node: str) -> None:
    """Let ``node`` die: nothing on it goes on, and nothing of it answers."""
    cut(node)
    for _ in range(3):  # what is ended may just have started something
        for pid in processes(node):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def slurm(*command: str, limit_s: float = LIMIT_S, **variables: str) -> str:
    """Run one of Slurm's commands on the machine that jobs are submitted from; return what it prints."""
    environment = {**os.environ, "SLURM_CONF": str(SLURM_CONF), **variables}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def _ssh_up() -> None:
    """Let root of every node log in to the other one, with a key that this cluster alone knows."""
    secrets = STATE / "ssh"
    secrets.mkdir(mode=0o700, exist_ok=True)
    for key in ("host", "user"):
        if not (secrets / key).exists():
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(secrets / key))
    (secrets / "client").write_text(
        f"Host *\n  IdentityFile {secrets}/user\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
        "  LogLevel ERROR\n"
    )
    COMMANDS.mkdir(exist_ok=True)
    (COMMANDS / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {secrets}/client "$@"\n')
    (COMMANDS / "ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it
    for node in NODES:
        settings = {
            "ListenAddress": address(node),
            "PidFile": f"{STATE}/sshd-{node}.pid",
            "HostKey": f"{secrets}/host",
            "AuthorizedKeysFile": f"{secrets}/user.pub",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
        }
        options = [text for name, value in settings.items() for text in ("-o", f"{name}={value}")]
        if not _pid(f"sshd-{node}"):
            _run(*enter(node), "/usr/sbin/sshd", "-f", "/dev/null", *options)


def _slurm_up() -> None:
    for folder in ("log", "state", *(f"spool/{node}" for node in NODES)):
        (STATE / folder).mkdir(parents=True, exist_ok=True)
    secrets = STATE / "munge"
    secrets.mkdir(mode=0o700, exist_ok=True)
    if not (secrets / "key").exists():
        (secrets / "key").write_bytes(os.urandom(1024))
        (secrets / "key").chmod(0o400)
    configuration = _slurm_configuration()
    if not SLURM_CONF.exists() or SLURM_CONF.read_text() != configuration:
        SLURM_CONF.write_text(configuration)
    (STATE / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
    (STATE / "mpi.conf").write_text(f"PMIxCliTmpDirBase={STATE}/own\n")
    # GPUs that can be asked for, and are not there.
    (STATE / "gres.conf").write_text("AutoDetect=off\nName=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    environment = {**os.environ, "SLURM_CONF": str(SLURM_CONF)}

    if not _pid("munged"):
        options = {"key-file": "munge/key", "socket": "munge.sock", "pid-file": "munged.pid"}
        options |= {"log-file": "log/munged.log", "seed-file": "munge/seed"}
        _run("munged", "--force", *(f"--{name}={STATE / path}" for name, path in options.items()))
    if not _pid("slurmctld"):
        _run("slurmctld", environment=environment)
    for node in NODES:
        if not _pid(f"slurmd-{node}"):
            _run(*enter(node), "slurmd", "-N", node, environment=environment)
    deadline = time.monotonic() + LIMIT_S
    while len(idle_nodes()) < len(NODES):
        if time.monotonic() > deadline:
            raise RuntimeError(f"Slurm did not come up: see {STATE}/log")
        time.sleep(0.2)


def slurm_node_up(node: str) -> None:
    """Start a node anew that has crashed, and wait until jobs can run on it."""
    restore(node)
    _stop(f"slurmd-{node}")
    up(slurm=True)


def idle_nodes() -> list[str]:
    """Return the nodes that can take a job, or do so."""
    try:
        return slurm("sinfo", "-h", "-N", "-p", "main", "-t", "idle,mix,alloc", "-o", "%N").split()
    except (RuntimeError, subprocess.TimeoutExpired):
        return []


def _slurm_configuration() -> str:
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 // len(NODES) * 8 // 10
    # Each cluster begins its jobs with another number, so that none writes where one of an older cluster did.
    first_job = STATE / "first-job"
    if not first_job.exists():
        first_job.write_text(str(int(time.time() - NUMBERS_SINCE) // 2))
    # No cgroups, accounts or systemd; a crashed node is given up soon, and a job that is queued again starts soon.
    settings = {
        "ClusterName": "ddl",
        "SlurmctldHost": f"{os.uname().nodename}({GATEWAY})",
        "SlurmctldPort": str(16817 + NUMBER),
        "FirstJobId": first_job.read_text(),
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={STATE}/munge.sock,cred_expire=5",
        "CredType": "cred/munge",
        "MpiDefault": "none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1",
        "SwitchType": "switch/none",
        "GresTypes": "gpu",
        "ReturnToService": "2",
        "JobRequeue": "1",
        "KillWait": "5",
        "MinJobAge": "300",
        "SlurmctldTimeout": "30",
        "SlurmdTimeout": "15",
        "SlurmctldPidFile": f"{STATE}/slurmctld.pid",
        "SlurmctldLogFile": f"{STATE}/log/slurmctld.log",
        "StateSaveLocation": f"{STATE}/state",
        "SlurmdPidFile": f"{STATE}/slurmd-%n.pid",
        "SlurmdSpoolDir": f"{STATE}/spool/%n",
        "SlurmdLogFile": f"{STATE}/log/slurmd-%n.log",
        "SlurmdParameters": "config_overrides",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
    }
    lines = [f"{name}={value}" for name, value in settings.items()]
    for number, node in enumerate(NODES, 1):
        place = f"NodeName={node} NodeHostname={node} NodeAddr={address(node)} Port={17000 + number}"
        # More cores than there are: the tests wait more than they compute.
        lines.append(f"{place} CPUs=4 Gres=gpu:2 RealMemory={memory_mb} State=UNKNOWN")
    lines += [
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20",
        "PartitionName=high Nodes=ALL Default=NO MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF",
    ]
    return "\n".join(lines) + "\n"


def _pid(name: str) -> int | None:
    """Return the process of a daemon that was started here and still runs."""
    try:
        pid = int((STATE / f"{name}.pid").read_text())
        program = Path("/proc", str(pid), "comm").read_text().strip()
        state = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return pid if name.startswith(program) and state not in "ZX" else None


def _stop(name: str) -> None:
    pid = _pid(name)
    if pid:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + LIMIT_S
        while _pid(name) and time.monotonic() < deadline:
            time.sleep(0.1)
    (STATE / f"{name}.pid").unlink(missing_ok=True)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str, environment: dict[str, str] | None = None) -> None:
    # A daemon keeps its output open: it must not be waited for.
    with (STATE / "commands.log").open("a+") as log:
        start = log.tell()
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            log.seek(start)
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {log.read()}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="nox -s cluster --", description=__doc__)
    parsers = parser.add_subparsers(dest="command", required=True)
    parsers.add_parser("up", help="make the nodes, and start Slurm on them if it is installed")
    parsers.add_parser("down", help="end everything that runs on the nodes and remove them")
    parsers.add_parser("status", help="what runs on each node")
    run = parsers.add_parser("run", help="run a command on a node, in this folder")
    run.add_argument("node", choices=NODES)
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    for name, text in (("cut", "pull the network cable of a node"), ("restore", "plug it in again")):
        parsers.add_parser(name, help=text).add_argument("node", choices=NODES)
    options = parser.parse_args(arguments)
    try:
        with_slurm = shutil.which("slurmctld") is not None
        check(slurm=False)
        if options.command == "up":
            up(slurm=with_slurm)
            print(f"{' and '.join(NODES)} are up: nox -s cluster -- run {NODES[0]} COMMAND")
            if not (COMMANDS / "ssh").exists():
                print("no ssh between them: apt-get install --no-install-recommends openssh-server")
            if with_slurm:
                print(f"Slurm runs on them: export SLURM_CONF={SLURM_CONF}; sinfo")
            else:
                print(f"without Slurm: apt-get install --no-install-recommends {SLURM_PACKAGES}")
        elif options.command == "down":
            down()
        elif not STATE.exists():
            raise Missing("there is no cluster: nox -s cluster -- up")
        elif options.command == "status":
            for node in NODES:
                for line in commands(node).values() or ["idle"]:
                    print(f"{node}: {line}")
        elif options.command == "run":
            os.execvp("nsenter", [*enter(options.node), *options.words])
        else:
            {"cut": cut, "restore": restore}[options.command](options.node)
    except Missing as missing:
        print(f"error: {missing}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
