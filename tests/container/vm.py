"""A throw-away Debian 12 machine of its own kernel, for what a container can not show: limits, the OOM killer, devices, the clock.

    with VM(folder) as vm:          boots what is in the folder, a root
        vm.run("date")

It is emulated, so it needs no help of the processor, and is slow: everything in it takes some ten times as long. Commands go in through a
serial line, to a shell loop that a unit runs; each answers with its exit code and what it printed.
"""
import base64
import os
import shlex
import shutil
import socket
import subprocess
import tempfile

from rig import WORK, Commands, do, inspect, read, recipe, unpacked
from service import CEILING, NotHere, Skip, until

KERNEL = ["initramfs-tools", "linux-image-cloud-amd64"]
PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "mke2fs": "e2fsprogs"}
AGENT = r"""#!/bin/sh
# A line in: a command in base64. A line out: its exit code, what it printed on stdout and on stderr, in base64.
stty raw -echo <&3
echo ready >&3
while IFS= read -r line <&3; do
    code=0
    echo "$line" | base64 -d >/run/agent.command
    sh /run/agent.command >/run/agent.out 2>/run/agent.err </dev/null 3<&- || code=$?
    echo "$code $(base64 -w 0 /run/agent.out)- $(base64 -w 0 /run/agent.err)-" >&3
done
"""
UNIT = """[Service]
ExecStart=/bin/sh -c 'exec /usr/local/sbin/agent 3<>/dev/ttyS1'
OOMScoreAdjust=-1000
StandardInput=null
[Install]
WantedBy=multi-user.target
"""


def make_kernel(folder):
    """What the machine boots with: vmlinuz, initrd.img, and modules below lib."""
    root = folder + ".debian"
    try:
        do("mmdebstrap", "--quiet", "--mode=root", "--variant=apt", "--skip=check/empty", "--dpkgopt=force-unsafe-io",
           "--include=" + ",".join(KERNEL), "bookworm", root)
    except AssertionError as e:
        raise Skip(f"a kernel can not be installed: {e}") from e
    os.makedirs(folder + "/lib")
    for name in os.listdir(root + "/boot"):
        for word in ("vmlinuz", "initrd.img"):
            if name.startswith(word):
                shutil.copy(os.path.join(root, "boot", name), os.path.join(folder, word))
    shutil.move(root + "/usr/lib/modules", folder + "/lib/modules")
    shutil.rmtree(root)


class VM(Commands):
    """A machine whose disk begins as a copy of a folder."""

    def __init__(self, root, memory_mb=1024):
        missing = sorted(package for program, package in PROGRAMS.items() if not shutil.which(program))
        if missing:
            raise Skip("tools/deps.sh vm was not run: missing " + ", ".join(missing))
        if os.uname().machine != "x86_64":
            raise NotHere("the emulated machine is an x86_64")
        self.dir = tempfile.mkdtemp(dir=WORK)
        self.root, self.memory_mb = root, memory_mb
        self.qemu = self.line = None

    def __exit__(self, kind, value, tb):
        try:
            if kind and not issubclass(kind, (Skip, NotHere)):
                print("--- console of the machine\n" + read(self.dir + "/console")[-4000:])
                if self.line and self.qemu.poll() is None:
                    print("--- its journal (last lines)\n" + self.try_run("journalctl", "-q", "--no-pager", "-n", "60").stdout)
        finally:
            if self.line:
                self.line.close()
            if self.qemu:
                self.qemu.kill()
                self.qemu.wait()
            shutil.rmtree(self.dir, ignore_errors=True)

    def boot(self):
        kernel = unpacked("kernel", recipe(KERNEL, inspect.getsource(make_kernel)), make_kernel)
        for path, text, mode in (("usr/local/sbin/agent", AGENT, 0o755), ("etc/systemd/system/agent.service", UNIT, 0o644),
                                 ("etc/fstab", "/dev/vda / ext4 defaults 0 1\n", 0o644)):
            with open(os.path.join(self.root, path), "w", encoding="utf-8") as f:
                f.write(text)
            os.chmod(os.path.join(self.root, path), mode)
        wants = os.path.join(self.root, "etc/systemd/system/multi-user.target.wants")
        os.makedirs(wants, exist_ok=True)
        for link, to in ((wants + "/agent.service", "/etc/systemd/system/agent.service"),
                         (os.path.join(self.root, "etc/systemd/system/serial-getty@ttyS0.service"), "/dev/null"),
                         (os.path.join(self.root, "etc/systemd/system/serial-getty@ttyS1.service"), "/dev/null")):
            if not os.path.lexists(link):
                os.symlink(to, link)
        shutil.copytree(kernel + "/lib/modules", os.path.join(self.root, "usr/lib/modules"), dirs_exist_ok=True)
        disk, path = self.dir + "/disk", self.dir + "/line"
        do("mke2fs", "-q", "-t", "ext4", "-d", self.root, disk, "2500M")
        self.qemu = subprocess.Popen(
            ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", str(self.memory_mb), "-smp", "2", "-nodefaults",
             "-display", "none", "-no-reboot", "-nic", "none", "-serial", f"file:{self.dir}/console", "-serial", f"unix:{path},server=on,wait=off",
             "-kernel", kernel + "/vmlinuz", "-initrd", kernel + "/initrd.img", "-drive", f"file={disk},if=virtio,format=raw,cache=unsafe",
             "-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=false panic=-1"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def probe():
            if self.qemu.poll() is not None:
                raise Skip("qemu can not run here: " + self.qemu.stdout.read()[-400:])
            return os.path.exists(path)
        until("qemu runs", probe)
        line = socket.socket(socket.AF_UNIX)
        line.connect(path)
        line.settimeout(CEILING * 10)
        self.line = line.makefile("rwb")
        assert self.line.readline().strip().endswith(b"ready")
        return self

    def try_run(self, *words):
        self.line.write(base64.b64encode(shlex.join(words).encode()) + b"\n")
        self.line.flush()
        answer = self.line.readline().decode().split()
        assert len(answer) == 3, (words, answer)
        out, err = (base64.b64decode(x[:-1]).decode(errors="replace") for x in answer[1:])
        return subprocess.CompletedProcess(words, int(answer[0]), out, err)

    def write(self, inside, text):
        self.sh(f"mkdir -p $(dirname {inside}); echo {base64.b64encode(text.encode()).decode()} | base64 -d > {inside}")
