"""A throw-away Debian 12 machine in a container, with systemd as its first process, for tests of the packages and the units.

A test file defines functions named test_*(…) and ends with `run(globals())`, as the system tests do. run() goes on in a process
that is the first one of namespaces of its own: mounts and processes end with it, however it ends, and nobody else sees them. What the kernel
does not take along, the cgroups, is named after the process, and removed by it or by the next rig.

    with Container() as c:          boots; the first line of a test
        c.run("systemctl", "is-active", "dbus")

The root is made by mmdebstrap, once a week, and kept in BUILD/container with the packages that it needs later: there is no network
inside. Containers are overlays over it in memory.
"""
import contextlib
import ctypes
import fcntl
import hashlib
import http.client
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
import service                                              # noqa: E402  pylint: disable=wrong-import-position
from service import BUILD, CEILING, NotHere, Skip, until    # noqa: E402  pylint: disable=wrong-import-position

CACHE = os.path.join(BUILD, "container")
WORK = os.path.join(CACHE, "work")      # where this process, and nobody else, sees a file system in memory
HERE = "FASTCHAT_RIG_INSIDE"            # set in the process in its namespaces
ROOT = ["iproute2", "systemd-sysv"]     # beside what apt needs
# What tests install: each with all that it needs, in a repository of its own.
MIRROR = ["autopkgtest", "ca-certificates", "curl", "dbus", "dpkg-dev", "libcjson1", "libconfig9", "libcurl4", "libpcre2-8-0", "polkitd"]
MASKED = ["apt-daily-upgrade.timer", "apt-daily.timer", "console-getty.service", "dpkg-db-backup.timer", "e2scrub_all.timer",
          "fstrim.timer", "getty@tty1.service", "systemd-timesyncd.service"]
PROGRAMS = {"dpkg-scanpackages": "dpkg-dev", "ip": "iproute2", "mmdebstrap": "mmdebstrap", "nsenter": "util-linux", "systemd-nspawn": "systemd-container",
            "unshare": "util-linux", "zstd": "zstd"}
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1


# --- the process in its namespaces

def not_here():
    """Why there can be no container, or None."""
    if os.geteuid() != 0:
        raise NotHere("a container needs root")
    missing = sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})
    if missing:
        raise Skip("tools/deps.sh container was not run: missing " + ", ".join(missing))


def cgroup_home():
    """Where this process may make cgroups: its own one in the unified hierarchy."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        mounts = [line.split() for line in f]
    where = next((m[4] for m in mounts if m[m.index("-") + 1] == "cgroup2"), None)
    if not where:
        raise Skip("there is no unified cgroup hierarchy")
    with open("/proc/self/cgroup", encoding="utf-8") as f:
        mine = next((line.rstrip("\n")[3:] for line in f if line.startswith("0::")), "/")
    return where + (mine if os.path.isdir(where + mine) else "/")


def started(pid):
    """When a process was started, in ticks; None where there is none."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
        return f.read().rsplit(")", 1)[1].split()[19]
    return None


def remove_cgroup(path):
    """With all below it. Processes in it are killed first."""
    with contextlib.suppress(OSError), open(os.path.join(path, "cgroup.kill"), "w", encoding="utf-8") as f:
        f.write("1")

    def gone():
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return not os.path.exists(path)
    until(f"{path} is gone", gone)


def make_cgroup():
    """A cgroup for this rig; those of rigs that ended without a word are removed."""
    home = cgroup_home()
    for name in os.listdir(home):
        words = name.split("-")
        if name.startswith("fastchat-rig-") and len(words) == 4 and started(words[2]) != words[3]:
            remove_cgroup(os.path.join(home, name))
    path = os.path.join(home, f"fastchat-rig-{os.getpid()}-{started(os.getpid())}")
    try:
        os.mkdir(path)
    except OSError as e:
        raise Skip(f"no cgroup can be made: {e}") from e
    return path


def join_cgroup(path):
    with open(os.path.join(path, "cgroup.procs"), "w", encoding="utf-8") as f:
        f.write("0")


def begin_machine(cgroup):
    """In the process that becomes it: a group of its own, and no nice of the tests' own."""
    join_cgroup(cgroup)
    os.setpriority(os.PRIO_PROCESS, 0, 0)


def enter():
    """Runs this test program again as the first process of new namespaces; does not return."""
    cgroup = make_cgroup()
    os.makedirs(WORK, exist_ok=True)

    def prepare():
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        join_cgroup(cgroup)
    command = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
               sys.executable, *sys.argv]
    code = 1
    try:
        with subprocess.Popen(command, env=dict(os.environ, **{HERE: cgroup}), preexec_fn=prepare) as child:
            first = int(until("the first process", lambda: read(f"/proc/{child.pid}/task/{child.pid}/children") or
                              (child.poll() is not None and "0")).split()[0])

            def pass_on(number, _frame):
                with contextlib.suppress(ProcessLookupError):
                    if first:
                        os.kill(first, number)
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, pass_on)
            code = child.wait()
    finally:
        remove_cgroup(cgroup)
    sys.exit(code if code >= 0 else 1)


def read(path):
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as f:
        return f.read()
    return ""


def end_by_signal(number, _frame):
    sys.exit(128 + number)


def run(names):
    """In place of service.run, for tests that use a Container."""
    try:
        not_here()
        if not os.environ.get(HERE):
            enter()
    except (NotHere, Skip) as reason:
        def say(why=reason):
            raise why
        service.run({name: say for name, fn in names.items() if name.startswith("test_") and callable(fn)})
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, end_by_signal)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755,size=6g", "rig", WORK], check=True)
    service.run(names)


# --- the root

@contextlib.contextmanager
def locked(name):
    """One process at a time makes what is kept."""
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, name + ".lock"), "w", encoding="utf-8") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def forget(prefix, keep):
    """Removes what was kept under other names."""
    for name in os.listdir(CACHE):
        if name.startswith(prefix) and not name.startswith(keep) and not name.endswith(".lock"):
            path = os.path.join(CACHE, name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def do(*command, **kw):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def make_root(root, mirror):
    """A root that holds apt and systemd, and beside it the packages for later."""
    os.makedirs(root + "/mirror/partial")
    try:
        do("mmdebstrap", "--quiet", "--mode=root", "--variant=apt", "--skip=check/empty,cleanup/apt/lists", "--dpkgopt=force-unsafe-io",
           "--include=" + ",".join(ROOT), "bookworm", root)
        do("chroot", root, "apt-get", "-q", "-y", "install", "--no-install-recommends", "--download-only",
           "-o", "Dir::Cache::archives=/mirror", *MIRROR, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"})
    except AssertionError as e:
        raise Skip(f"a root can not be made: {e}") from e
    os.mkdir(mirror)
    for name in os.listdir(root + "/mirror"):
        if name.endswith(".deb"):
            shutil.move(os.path.join(root, "mirror", name), mirror)
    shutil.rmtree(root + "/mirror")
    with open(os.path.join(mirror, "Packages"), "w", encoding="utf-8") as f:
        f.write(subprocess.run(["dpkg-scanpackages", "-m", "."], cwd=mirror, check=True, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True).stdout)
    for folder in ("var/lib/apt/lists", "var/cache/apt"):
        shutil.rmtree(os.path.join(root, folder))
        os.makedirs(os.path.join(root, folder, "partial" if folder.endswith("lists") else "archives/partial"))
    for unit in MASKED:
        os.symlink("/dev/null", f"{root}/etc/systemd/system/{unit}")
    for path, text in {"etc/machine-id": "", "etc/hostname": "debian\n",
                       "etc/apt/sources.list": "deb [trusted=yes] file:/mirror ./\n",
                       "etc/systemd/journald.conf.d/test.conf": "[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\n",
                       "var/log/journal/README": ""}.items():
        os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
        with open(f"{root}/{path}", "w", encoding="utf-8") as f:
            f.write(text)


def recipe(*words):
    """A number for how something is made; another one each week, for Debian's updates."""
    return hashlib.sha256(repr((words, time.strftime("%G-%V"))).encode()).hexdigest()[:16]


def unpacked(name, key, make):
    """A folder in memory with what make(folder) puts there, which is kept in CACHE."""
    kept, folder = os.path.join(CACHE, f"{name}-{key}.tar.zst"), os.path.join(WORK, name)
    if os.path.isdir(folder):
        return folder
    with locked(name):
        if not os.path.exists(kept):
            making = tempfile.mkdtemp(dir=WORK)
            make(making + "/root")
            forget(name + "-", name + "-" + key)
            do("tar", "-C", making + "/root", "-I", "zstd -3", "-cf", kept + ".new", ".")
            os.rename(kept + ".new", kept)
            shutil.rmtree(making)
    os.mkdir(folder + ".new")
    do("tar", "-C", folder + ".new", "-I", "zstd", "-xpf", kept)
    os.rename(folder + ".new", folder)
    return folder


def base():
    """(folder of the root, folder of the repository of packages for later)"""
    key = recipe(ROOT, MIRROR, MASKED, inspect.getsource(make_root))
    mirror = os.path.join(CACHE, "mirror-" + key)

    def make(folder):
        shutil.rmtree(mirror, ignore_errors=True)
        make_root(folder, mirror)
        forget("mirror-", "mirror-" + key)
    return unpacked("root", key, make), mirror


# --- a container

class Inside(http.client.HTTPConnection):
    """To an address in a container, which has a network of its own."""

    def __init__(self, container, port):
        super().__init__("127.0.0.1", port, timeout=CEILING)
        self.container = container

    def connect(self):
        self.sock = self.container.dial()


class Wire:
    """A network between machines that nobody else is in: `with Wire() as wire:`, then Container(wire=wire). The first is 10.99.0.1."""

    option = "--network-bridge=wire"

    def __enter__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.inside, self.n = ["nsenter", "-t", str(self.holder.pid), "-n"], 0
        until("it has a network of its own", lambda: os.readlink(f"/proc/{self.holder.pid}/ns/net") != os.readlink("/proc/self/ns/net"))
        do(*self.inside, "ip", "link", "add", "wire", "type", "bridge")
        do(*self.inside, "ip", "link", "set", "wire", "up")
        return self

    def __exit__(self, kind, value, tb):
        self.holder.kill()
        self.holder.wait()

    def next_address(self):
        self.n += 1
        return f"10.99.0.{self.n}"


class Commands:
    """What one does on a machine, by its boot() and try_run()."""

    def __enter__(self):
        try:
            return self.boot()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def run(self, *words):
        """What it printed; a failure is the test's."""
        done = self.try_run(*words)
        assert done.returncode == 0, f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def sh(self, script):
        return self.run("sh", "-ec", script)

    def unit(self, *words, **properties):
        """In a transient unit, so in a cgroup and with limits as a service has: subprocess.run's result."""
        return self.try_run("systemd-run", "-q", "--wait", "--pipe", "--collect", *[f"-p{k}={v}" for k, v in properties.items()], *words)

    def show(self, what, unit="fastchat.service"):
        """A property of a unit."""
        return self.run("systemctl", "show", "-P", what, unit).strip()

    def kill(self, name, pid):
        self.sh(f"kill -{name} {pid}")

    def drop_in(self, text, unit="fastchat.service"):
        self.write(f"/etc/systemd/system/{unit}.d/test.conf", text)
        self.run("systemctl", "daemon-reload")

    def apt(self, *words):
        return self.run("apt-get", "-q", "-y", *words)

    def journal(self, *words):
        return self.run("journalctl", "-q", "--no-pager", *words)


class Container(Commands, service.Service):
    """A booted machine; also a service.Service for the fastchat that is installed in it.

    layers    folders over the root, topmost first
    binds     {path inside: folder outside}, read-only
    wire      a Wire to other machines; else there is no network
    """

    count = 0

    def __init__(self, layers=(), binds=None, port=8000, wire=None):    # pylint: disable=super-init-not-called
        Container.count += 1
        self.name = f"c{Container.count}"
        self.dir = os.path.join(WORK, self.name)
        self.layers, self.binds, self.port, self.wire = list(layers), dict(binds or {}), port, wire
        self.runtime = "/run/fastchat"
        self.leader = self.nspawn = self.cgroup = None

    def __exit__(self, kind, value, tb):
        try:
            if kind and not issubclass(kind, (Skip, NotHere)):
                self.complain()
        finally:
            self.stop()
            shutil.rmtree(self.dir, ignore_errors=True)

    def boot(self):
        root, mirror = base()
        for name in ("upper", "inner", "root"):
            os.makedirs(os.path.join(self.dir, name))
        do("mount", "-t", "overlay", "-o", f"lowerdir={':'.join(self.layers + [root])},upperdir={self.dir}/upper,workdir={self.dir}/inner",
           "rig", self.dir + "/root")
        self.cgroup = os.path.join(os.environ[HERE], self.name)
        os.mkdir(self.cgroup)
        binds = [f"--bind-ro={outside}:{inside}" for inside, outside in {"/mirror": mirror, **self.binds}.items()]
        with open(self.dir + "/console.log", "wb") as log:
            self.nspawn = subprocess.Popen(
                [*(self.wire.inside if self.wire else []), "systemd-nspawn", "-q", "-D", self.dir + "/root", "--machine=" + self.name,
                 "--register=no", "--keep-unit", "--console=read-only", self.wire.option if self.wire else "--private-network",
                 "--link-journal=no", *binds, "-b"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ, SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="1"),
                preexec_fn=lambda: begin_machine(self.cgroup))

        def probe():
            if self.nspawn.poll() is not None:
                raise Skip("systemd-nspawn can not boot here: " + read(self.dir + "/console.log")[-400:])
            for pid in read(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children").split():
                if read(f"/proc/{pid}/comm") == "systemd\n" and os.path.exists(f"/proc/{pid}/root/run/systemd/private"):
                    return int(pid)
            return None
        self.leader = until("systemd runs in the container", probe)
        if self.wire:
            self.sh(f"ip addr add {self.wire.next_address()}/24 dev host0; ip link set host0 up")
        state = self.try_run("systemctl", "is-system-running", "--wait").stdout.strip()
        assert state in ("running", "degraded"), state
        return self

    def stop(self):
        """Off, as by `poweroff`; what it wrote stays in its folder until the end of the with."""
        if self.nspawn:
            if self.nspawn.poll() is None and self.leader:
                os.kill(self.leader, signal.SIGRTMIN + 4)
            try:
                self.nspawn.wait(CEILING if self.leader else 1)
            except subprocess.TimeoutExpired:
                self.nspawn.kill()
                self.nspawn.wait()
        if self.cgroup:
            remove_cgroup(self.cgroup)
        if os.path.ismount(self.dir + "/root"):
            do("umount", self.dir + "/root")
        self.nspawn = self.leader = self.cgroup = None

    def complain(self):
        """What a failed test leaves to read: the end of the journal here, all of it in CACHE."""
        if not self.leader:
            print("--- console of the container\n" + read(self.dir + "/console.log")[-2000:])
        else:
            print("--- its journal (last lines)\n" + self.log())
            kept = os.path.join(CACHE, "journal")
            shutil.rmtree(kept, ignore_errors=True)
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(self.path("/var/log/journal"), kept)
                print(f"--- all of it: journalctl -D {kept}")

    # --- in it

    def path(self, inside):
        """A file of the container, seen from here."""
        return f"/proc/{self.leader}/root{inside}"

    def write(self, inside, text):
        os.makedirs(os.path.dirname(self.path(inside)), exist_ok=True)
        with open(self.path(inside), "w", encoding="utf-8") as f:
            f.write(text)

    def read(self, inside):
        with open(self.path(inside), encoding="utf-8", errors="replace") as f:
            return f.read()

    def command_line(self, words):
        return ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--", "env", "-i",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "SYSTEMD_COLORS=0",
                "PAGER=cat", *words]

    def try_run(self, *words, **kw):
        """subprocess.run in the container, as root; not in a unit of its own: see unit()."""
        return subprocess.run(self.command_line(words), capture_output=True, text=True, errors="replace", timeout=CEILING * 2,
                              stdin=kw.pop("stdin", subprocess.DEVNULL), **kw)

    @contextlib.contextmanager
    def network(self):
        """The calling thread is in the container's network; sockets that it makes stay there."""
        with open("/proc/thread-self/ns/net", "rb") as own, open(f"/proc/{self.leader}/ns/net", "rb") as theirs:
            if LIBC.setns(theirs.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield
            finally:
                LIBC.setns(own.fileno(), CLONE_NEWNET)

    # --- as a service.Service

    def cli(self, *args, **kw):
        return self.try_run("fastchat", *args, **kw)

    def dial(self):
        with self.network():
            return super().dial()

    def connect(self, unix=False):
        return service.Unix(self.path("/run/fastchat/api.sock")) if unix else Inside(self, self.port)

    def log(self):
        return self.try_run("journalctl", "-q", "--no-pager", "-n", "40", "-o", "short-monotonic").stdout if self.leader else ""
