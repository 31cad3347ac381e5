"""The packages of this tree in signed repositories, as packaging/deb makes them, and machines that have them installed.

There are two versions of fastchat: FIRST is the tree's own, NEXT the same tree with a higher number, built like the first. Both are kept in
BUILD/container until something of the tree changes.
"""
import functools
import glob
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess

from rig import CACHE, WORK, Container, do, forget, locked, read
from service import SOURCE, TICKS, of_git, real_model, until

FIRST = re.search(r"^  version : '([^']+)'", read(os.path.join(SOURCE, "meson.build")), re.M)[1]
NEXT = re.sub(r"\d+$", lambda m: str(int(m[0]) + 1), FIRST)
PLACE = "/srv/fastchat"         # where README.md says that the repository is
PLAY = "/srv/play.json"
SETTINGS = "/etc/fastchat/conf.d/test.conf"


def model(name, extra=""):
    """A model of the config that plays TICKS."""
    return f'{{ name = "{name}"; device = "scripted"; path = "{PLAY}"; parallel = 256; queue = 300; {extra} }}'


@functools.cache
def tree():
    """A number for all that packages are made of, when this process first asked."""
    listed = of_git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        names = listed.split("\0")
    else:
        names = [os.path.relpath(os.path.join(folder, name), SOURCE) for folder, _, files in os.walk(SOURCE) for name in files if "__pycache__" not in folder]
    total = hashlib.sha256("".join(inspect.getsource(x) for x in (build, repository)).encode())
    for name in sorted(names):
        path = os.path.join(SOURCE, name)
        if os.path.isfile(path) and not name.startswith(("tests/", "tools/", "build", ".git/")) and not name.endswith(".md"):
            with open(path, "rb") as f:
                total.update(f"{name} {os.stat(path).st_mode & 0o111}\n".encode() + hashlib.file_digest(f, "sha256").digest())
    return total.hexdigest()[:16]


def build(out, *args):
    path = os.environ["PATH"]
    if os.path.isdir("/usr/lib/ccache"):
        path = "/usr/lib/ccache:" + path
    do(os.path.join(SOURCE, "packaging/deb/build"), *args[:-1], out, args[-1],
       env=dict(os.environ, PATH=path, DEB_BUILD_OPTIONS="nocheck", CCACHE_BASEDIR="/tmp", CCACHE_NOHASHDIR="1"))


def repository(name="both"):
    """The folder of a signed repository that holds the model and, of the service, "first": only FIRST, "both": FIRST and NEXT."""
    key = tree()
    kept = os.path.join(CACHE, "packages-" + key)
    with locked("packages"):
        if not os.path.isdir(kept):
            forget("packages-", "packages-" + key)
            shutil.rmtree(kept + ".new", ignore_errors=True)
            real_model()
            for version in FIRST, NEXT:
                build(f"{kept}.new/{version}", "--version", version, "fastchat")
            build(f"{kept}.new/model", "fastchat-model-smollm2")
            debs = {v: glob.glob(f"{kept}.new/{v}/*.deb") for v in (FIRST, NEXT, "model")}
            debs = {v: [d for d in found if "-dbgsym_" not in d] for v, found in debs.items()}
            for folder, versions in {"first": (FIRST, "model"), "both": (FIRST, NEXT, "model")}.items():
                do(os.path.join(SOURCE, "packaging/deb/repo"), "--url", "file:" + PLACE, f"{kept}.new/{folder}",
                   *[d for v in versions for d in debs[v]])
            for folder in debs:
                shutil.rmtree(f"{kept}.new/{folder}")
            os.rename(kept + ".new", kept)
    return os.path.join(kept, name)


def readme(section):
    """The lines of a section of README.md that are commands."""
    text = read(os.path.join(SOURCE, "README.md"))
    found = re.search(rf"^## {section}\n(.*?)^## ", text, re.M | re.S)
    assert found, f"README.md has no section '{section}'"
    return [line[4:] for line in found[1].splitlines() if line.startswith("    ")]


class Machine(Container):
    """With the repository at hand. Nothing of it is installed."""

    def __init__(self, repo="both", **kw):
        super().__init__(binds={PLACE: repository(repo)}, **kw)

    def boot(self):
        super().boot()
        self.write("/etc/apt/apt.conf.d/90test", 'APT::Get::Assume-Yes "1";\nDPkg::Options { "--force-confold"; "--force-unsafe-io"; };\n')
        return self

    def use_repository(self):
        self.sh(f"cp {PLACE}/fastchat.sources /etc/apt/sources.list.d/")
        self.apt("update")

    def install(self, *packages):
        """With nothing that is only recommended; what apt said."""
        return self.apt("install", "--no-install-recommends", "--allow-downgrades", *packages)

    def version(self):
        return self.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "fastchat")

    def state(self, unit="fastchat.service"):
        return self.try_run("systemctl", "is-active", unit).stdout.strip()

    def main_pid(self):
        return int(self.show("MainPID"))

    def said(self, text):
        """Waits until the journal has a text. Lines take their time to get there, and whose they are is not known of a process that has
        ended meanwhile: so all of it is searched."""
        until(f"the journal has '{text}'", lambda: text in self.journal("-o", "cat"))

    def settings(self, text):
        """Beside the shipped configuration, which stays as it is."""
        self.write(SETTINGS, text)


class Installed(Machine):
    """With FIRST installed and running since the boot, beside a bus and polkit, and a scripted model "m" that plays TICKS."""

    layer = None

    def __init__(self, **kw):
        if not Installed.layer:
            Installed.layer = self.make()
        super().__init__(layers=[Installed.layer], **kw)

    @staticmethod
    def make():
        layer = os.path.join(WORK, "installed")
        m = Machine()
        try:
            m.boot()
            m.use_repository()
            m.install("curl", "dbus", "polkitd")
            m.run("systemctl", "start", "dbus")
            m.install("fastchat=" + FIRST)
            m.write(PLAY, json.dumps(TICKS))
            m.settings(f"models = ( {model('m')} );\n")
            m.stop()
            shutil.move(m.dir + "/upper", layer)
        except BaseException:
            m.complain()
            raise
        finally:
            m.stop()
            shutil.rmtree(m.dir, ignore_errors=True)
        return layer

    def boot(self):
        super().boot()
        self.wait_ready()
        return self

    def wait_ready(self):
        def probe():
            children = self.children()
            return children and all(c["state"] == "ready" for c in children) and self.request("GET", "/v1/models")[2]["data"]
        until("the service is ready", probe)
