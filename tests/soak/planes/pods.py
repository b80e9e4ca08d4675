"""Pods without a kubelet: each has its own root folder with its mounts, and its own network.

A trial runs in its own mount and network namespaces: the machine is not changed, and everything ends with the namespaces.
"""

import os
import pathlib
import shutil
import subprocess
import time
import urllib.request

DEADLINE = 120
CHROOT = shutil.which("chroot")
LIMITER = "10.77.0.2"


def run(*command, **options):
    """Runs a command, and returns its output. Raises if it fails."""
    made = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert made.returncode == 0, f"{command}: {made.stdout}{made.stderr}"
    return made.stdout


def eventually(what, probe):
    """Waits until the probe returns something, and returns it."""
    began = time.monotonic()
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < began + DEADLINE, f"waited {DEADLINE} s for {what}"
        time.sleep(0.05)


class Process:
    """A process whose output goes to a file."""

    def __init__(self, log, command, **options):
        self.log = log
        self.begin = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as output:
            words = [str(word) for word in command]
            self.child = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, **options)

    def output(self):
        return self.log.read_bytes()[self.begin :].decode(errors="replace")

    def assert_running(self):
        assert self.child.poll() is None, f"{self.log} ended with {self.child.returncode}:\n{self.output()[-3000:]}"

    def stop(self):
        self.child.terminate()
        self.child.wait(DEADLINE)

    def kill(self):
        self.child.kill()
        self.child.wait()


class Network:
    """The network of the limiter's pod, with the address LIMITER. This process is in the network of the gateway."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        inside = f"/proc/{self.holder.pid}/ns/net"
        mine = os.readlink("/proc/self/ns/net")
        eventually("the namespace", lambda: os.readlink(inside) != mine)
        self.enter = [shutil.which("nsenter"), f"--net={inside}"]
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "limiter", "type", "veth", "peer", "name", "gateway", "netns", self.holder.pid)
        for enter, name, address in [([], "limiter", "10.77.0.1"), (self.enter, "gateway", LIMITER)]:
            run(*enter, "ip", "address", "add", f"{address}/24", "dev", name)
            run(*enter, "ip", "link", "set", name, "up")
        run(*self.enter, "ip", "link", "set", "lo", "up")


def mount(source, target, *options):
    """Makes files visible in a second place."""
    if pathlib.Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    run("mount", "--bind", *options, source, target)


def root(folder, names, mounts):
    """Makes a root with the machine's programs and libraries. `names` is {address: names}, `mounts` is {path: source}."""
    folder.mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", folder)
    mount("/usr", folder / "usr", "-o", "ro")
    for name in ["dev", "proc"]:
        mount(f"/{name}", folder / name)
    for name in ["lib", "lib64"]:
        shutil.copy(f"/{name}", folder / name, follow_symlinks=False)
    (folder / "etc").mkdir()
    hosts = {"127.0.0.1": "localhost"} | names
    (folder / "etc/hosts").write_text("".join(f"{address} {name}\n" for address, name in hosts.items()))
    (folder / "etc/resolv.conf").touch()
    (folder / "etc/passwd").write_text("root:x:0:0::/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n")
    for path, source in mounts.items():
        mount(source, folder / path.lstrip("/"))
    return folder


class Secret:
    """Files of a Secret, as the kubelet mounts them: links through `..data`, and an update renames a new link to that."""

    def __init__(self, folder, source):
        self.folder, self.version = folder, 0
        folder.mkdir(parents=True)
        for file in source.iterdir():
            (folder / file.name).symlink_to(f"..data/{file.name}")
        self.update(source)

    def update(self, source):
        self.version += 1
        name = f"..{self.version}"
        shutil.copytree(source, self.folder / name)
        for file in (self.folder / name).iterdir():
            file.chmod(0o644)
        (self.folder / "..next").symlink_to(name)
        (self.folder / "..next").rename(self.folder / "..data")


class Limiter:
    """The container of a Deployment, run as nobody, with a read-only root and the volumes that it mounts.

    `files` has the folders of Secrets and ConfigMaps by their names.
    """

    def __init__(self, work, network, names, program, workload, files):
        pod = workload["spec"]["template"]["spec"]
        container = pod["containers"][0]
        name = f"limiter-{len(list(work.glob('limiter-*.log')))}"
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {"/bin/tidegate": program}
        for mounted in container["volumeMounts"]:
            volume = volumes[mounted["name"]]
            source = volume["secret"]["secretName"] if "secret" in volume else volume["configMap"]["name"]
            mounts[mounted["mountPath"]] = files[source]
        folder = root(work / name, names, mounts)
        (folder / "bin/ratelimit").symlink_to("tidegate")
        run("mount", "-o", "remount,ro", folder)
        environment = {item["name"]: item["value"] for item in container["env"]}
        # DRAIN_GRACE is what users add. The timeout is long, because a busy machine is not what is tested.
        environment |= {"DRAIN_GRACE": "10s", "REDIS_TIMEOUT": "10s"}
        inside = [CHROOT, "--userspec=65534:65534", "--groups=", folder]
        command = network.enter + inside + container.get("command", ["/bin/tidegate"])
        self.process = Process(work / f"{name}.log", command, env=environment)
        eventually("the limiter to be healthy", self.is_healthy)

    def is_healthy(self):
        self.process.assert_running()
        try:
            return urllib.request.urlopen(f"http://{LIMITER}:8080/healthcheck", timeout=5).status == 200
        except OSError:
            return False
