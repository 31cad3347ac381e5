"""The Debian packages as files. Builds them twice, so it takes a minute or more; what is installed is tested in tests/container."""
import atexit
import functools
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "system"))
from service import SOURCE, NotHere, Skip, of_git, real_model, run          # noqa: E402  pylint: disable=wrong-import-position

DEB = os.path.join(SOURCE, "packaging/deb")
TOOLS = {"dh": "debhelper", "dpkg-buildpackage": "dpkg-dev", "lintian": "lintian", "apt-ftparchive": "apt-utils", "gpg": "gnupg"}
NOBODY = 65534


def need_tools():
    missing = sorted(package for tool, package in TOOLS.items() if not shutil.which(tool))
    if missing:
        raise Skip("tools/deps.sh package was not run: missing " + ", ".join(missing))


@functools.cache
def folder():
    """Of all builds; who builds as somebody else gets in."""
    path = tempfile.mkdtemp(prefix="fastchat-packaging-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    os.chmod(path, 0o755)
    return path


def do(*words, **kw):
    got = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **kw)
    assert got.returncode == 0, f"{words}: exit code {got.returncode}\n{got.stdout[-6000:]}"
    return got.stdout


def tracked_state():
    """What git says about the tree, ignored files of the Debian folder too; None where there is no git."""
    return of_git("status", "--porcelain", "--ignored=matching", "--", "packaging", "debian", "meson.build", "obj-*")


def environment(place, **more):
    """An empty one but for what finds the compiler and its cache, with room of its own."""
    cache = os.path.join(place, "cache")
    os.makedirs(os.path.join(cache, "models"))
    os.makedirs(os.path.join(place, "tmp"))
    shutil.copy(real_model(), os.path.join(cache, "models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "CCACHE_DIR", "CCACHE_BASEDIR", "CCACHE_NOHASHDIR")}
    return dict(kept, TMPDIR=os.path.join(place, "tmp"), HOME=place, FASTCHAT_CACHE=cache, **more)


@functools.cache
def here():
    """The packages as the tree's owner builds them."""
    need_tools()
    out = os.path.join(folder(), "here/out")
    place = os.path.dirname(out)
    os.makedirs(place)
    before = tracked_state()
    do(os.path.join(DEB, "build"), out, umask=0o022, env=environment(place, DEB_BUILD_OPTIONS="nocheck parallel=2", TZ="UTC", LC_ALL="C.UTF-8"))
    assert tracked_state() == before, "a build has left something in the tree"
    return out


def as_somebody_else(place):
    """A copy of the tree and of the model, and how to run a program that owns them: for root that is nobody, where nobody can work."""
    tree = os.path.join(place, "another name of the tree")
    os.makedirs(tree)
    listed = of_git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        for name in filter(os.path.lexists, (os.path.join(SOURCE, n) for n in listed.split("\0") if n)):
            to = os.path.join(tree, os.path.relpath(name, SOURCE))
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy2(name, to, follow_symlinks=False)
    else:
        shutil.copytree(SOURCE, tree, symlinks=True, dirs_exist_ok=True, ignore=lambda top, names: [n for n in names if n == "__pycache__" or (top == SOURCE and n.startswith("build"))])
    env = environment(place, DEB_BUILD_OPTIONS="nocheck parallel=1", TZ="Pacific/Kiritimati", LC_ALL="C", LANG="tr_TR.UTF-8", LANGUAGE="tr")
    env.pop("CCACHE_DIR", None)
    if os.geteuid() != 0 or not os.stat("/dev/null").st_mode & 0o002:
        return tree, env, {}
    for top, _, files in os.walk(place):
        for path in [top] + [os.path.join(top, f) for f in files]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return tree, env, {"user": NOBODY, "group": NOBODY, "extra_groups": []}


@functools.cache
def there():
    """The same packages, built by another user in another folder and year, without git, with another umask, time zone, language and number of
    processors."""
    need_tools()
    clock = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    if not clock:
        raise Skip("libfaketime is not installed")
    place = os.path.join(folder(), "there")
    os.makedirs(place)
    tree, env, who = as_somebody_else(place)
    out = os.path.join(place, "packages")
    # The times of files stay: ninja compares them with what the kernel set itself.
    later = {"LD_PRELOAD": clock[0], "FAKETIME": "+500d", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
    do("env", *(f"{k}={v}" for k, v in later.items()), os.path.join(tree, "packaging/deb/build"), out, umask=0o077, env=env, cwd=place, **who)
    return out


def named(out, pattern):
    found = glob.glob(os.path.join(out, pattern))
    assert len(found) == 1, (pattern, found)
    return found[0]


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def contents(deb):
    """{path: (mode, owner, size)}"""
    lines = (line.split(None, 5) for line in do("dpkg-deb", "-c", deb).splitlines())
    return {words[5].split(" -> ")[0].lstrip("."): (words[0], words[1], words[2]) for words in lines}


def field(deb, name):
    return do("dpkg-deb", "-f", deb, name).strip()


def difference(a, b):
    """Where two packages differ, for whoever has to find the reason."""
    trees = []
    for deb in a, b:
        trees.append(tempfile.mkdtemp(dir=folder()))
        do("dpkg-deb", "-R", deb, trees[-1])
    got = subprocess.run(["diff", "-r", *trees], capture_output=True, text=True, errors="replace")
    return got.stdout[-3000:] + "\n".join(f"{path}: {x} {y}" for path, x in contents(a).items() for y in [contents(b).get(path)] if x != y)


def test_two_builds_under_other_circumstances_give_the_same_files():
    a, b = here(), there()
    names = sorted(os.path.basename(p) for p in glob.glob(os.path.join(a, "*.deb")))
    assert [n.split("_")[0] for n in names] == ["fastchat-dbgsym", "fastchat-model-smollm2", "fastchat"], names
    assert names == sorted(os.path.basename(p) for p in glob.glob(os.path.join(b, "*.deb")))
    for name in names + [os.path.basename(named(a, "fastchat_*.tar.xz"))]:
        pair = os.path.join(a, name), os.path.join(b, name)
        assert digest(pair[0]) == digest(pair[1]), f"{name} differs\n" + (difference(*pair) if name.endswith(".deb") else "")


def lintian_is_silent(changes):
    got = subprocess.run(["lintian", "--allow-root", "-EviIL", "+pedantic", "--tag-display-limit", "0", changes], capture_output=True, text=True)
    said = [line for line in got.stdout.splitlines() if re.match(r"[EWIPXC]:", line) or "mismatched-override" in line]
    assert not said and got.returncode == 0, "\n".join(said) + got.stderr


def test_lintian_has_nothing_to_say():
    for changes in sorted(glob.glob(os.path.join(here(), "*.changes"))):
        lintian_is_silent(changes)


def test_each_override_is_argued():
    for path in glob.glob(os.path.join(SOURCE, "packaging/**/*lintian-overrides"), recursive=True):
        with open(path, encoding="utf-8") as f:
            before = ""
            for line in f:
                assert line.startswith("#") or before, f"{path}: no argument above: {line}"
                before = line.strip()
    assert os.path.islink(os.path.join(SOURCE, "debian"))


def test_the_packages_have_the_version_of_the_programs():
    with open(os.path.join(SOURCE, "meson.build"), encoding="utf-8") as f:
        version = re.search(r"^  version : '([^']+)'", f.read(), re.M)[1]
    with open(os.path.join(DEB, "changelog"), encoding="utf-8") as f:
        assert f.readline().startswith(f"fastchat ({version}) ")


def test_the_package_holds_what_is_run_and_nothing_of_the_tests():
    deb = named(here(), "fastchat_*.deb")
    has = contents(deb)
    for path in ("/usr/sbin/fastchatd", "/usr/sbin/fastchat-worker", "/usr/bin/fastchat"):
        assert has[path][:2] == ("-rwxr-xr-x", "root/root"), (path, has.get(path))
    for path in ("/etc/fastchat/fastchat.conf", "/etc/fastchat/conf.d/", "/etc/fastchat/templates.d/", "/usr/share/fastchat/models/",
                 "/usr/share/fastchat/templates.d/example.json.off", "/lib/systemd/system/fastchat.service",
                 "/usr/lib/sysusers.d/fastchat.conf", "/usr/share/doc/fastchat/copyright", "/usr/share/doc/fastchat/operations.md.gz"):
        assert path in has, (path, sorted(has))
    assert not [p for p in has if re.search(r"test|fuzz|bench|golden|\.a$", p)], sorted(has)
    assert all(owner == "root/root" for _, owner, _ in has.values())
    wants = field(deb, "Depends") + field(deb, "Recommends")
    assert "systemd" in wants and not re.search("cuda|nvidia|libcriterion", wants), wants
    assert "libcuda1" in field(deb, "Suggests")


def test_the_model_is_a_package_without_a_dependency():
    deb = named(here(), "fastchat-model-smollm2_*_all.deb")
    assert field(deb, "Depends") == "" and field(deb, "Architecture") == "all"
    tree = tempfile.mkdtemp(dir=folder())
    do("dpkg-deb", "-x", deb, tree)
    assert digest(os.path.join(tree, "usr/share/fastchat/models/smollm2.gguf")) == digest(real_model())
    with open(os.path.join(tree, "usr/share/doc/fastchat-model-smollm2/copyright"), encoding="utf-8") as f:
        assert "License: Apache-2.0" in f.read()


def test_a_model_that_is_another_file_is_not_packaged():
    need_tools()
    tree = os.path.join(folder(), "changed/fastchat-model-smollm2")
    shutil.copytree(os.path.join(SOURCE, "packaging/deb-model-smollm2"), tree, symlinks=True)
    with open(os.path.join(tree, "smollm2.gguf"), "w", encoding="utf-8") as f:
        f.write("GGUF")
    got = subprocess.run(["dpkg-buildpackage", "-us", "-uc", "-b"], cwd=tree, capture_output=True, text=True, errors="replace")
    assert got.returncode != 0 and "smollm2.gguf: FAILED" in got.stdout + got.stderr, got.stdout[-2000:]


def test_the_static_package_takes_the_place_of_the_other_and_depends_on_the_c_library_only():
    deps = os.environ.get("FASTCHAT_DEPS") or os.path.join(SOURCE, "build-deps")
    if not os.path.exists(os.path.join(deps, "copyright")):
        raise NotHere(f"tools/static-deps.sh has not filled {deps}")
    need_tools()
    out = os.path.join(folder(), "static/out")
    os.makedirs(os.path.dirname(out))
    do(os.path.join(DEB, "build"), out, "fastchat-static", env=environment(os.path.dirname(out), DEB_BUILD_OPTIONS="nocheck", FASTCHAT_DEPS=deps))
    deb = named(out, "fastchat-static_*.deb")
    assert [field(deb, f).split(" ")[0] for f in ("Conflicts", "Replaces", "Provides")] == ["fastchat"] * 3
    assert re.fullmatch(r"systemd, libc6 \([^)]*\)", field(deb, "Depends")), field(deb, "Depends")
    inside = dict(re.findall(r"(\S+) \(= ([^)]*)\)", field(deb, "Built-Using")))
    assert {"cjson", "curl", "glibc", "libconfig", "openssl", "systemd"} <= set(inside), inside
    has = contents(deb)
    assert "/usr/sbin/fastchatd" in has, sorted(has)
    terms = {os.path.basename(p).removesuffix(".gz") for p in has if "/fastchat-static/copyright.d/" in p}
    assert {"cjson", "curl", "libc6", "libconfig", "libssl", "systemd"} <= terms, terms
    lintian_is_silent(named(out, "*.changes"))


class Apt:
    """apt with lists and sources of its own."""

    def __init__(self, sources):
        self.dir = tempfile.mkdtemp(dir=folder())
        os.chmod(self.dir, 0o755)
        for d in ("lists/partial", "cache/archives/partial"):
            os.makedirs(os.path.join(self.dir, d))
        self.sources = os.path.join(self.dir, "fastchat.sources")
        shutil.copy(sources, self.sources)

    def get(self, *words):
        options = {"Dir::Etc::sourcelist": self.sources, "Dir::Etc::sourceparts": "/dev/null", "Dir::State::lists": self.dir + "/lists",
                   "Dir::Cache": self.dir + "/cache", "Dir::State::status": "/dev/null", "APT::Sandbox::User": "root", "APT::Update::Error-Mode": "any"}
        words = [w for pair in (("-o", f"{k}={v}") for k, v in options.items()) for w in pair] + list(words)
        got = subprocess.run(["apt-get", *words], capture_output=True, text=True, env=dict(os.environ, LC_ALL="C.UTF-8"))
        return got.returncode, got.stdout + got.stderr


def repository(name):
    repo = os.path.join(folder(), name)
    do(os.path.join(DEB, "repo"), repo, named(here(), "fastchat_*.deb"), named(here(), "fastchat-model-smollm2_*.deb"))
    return repo


def test_apt_takes_the_packages_of_a_signed_repository():
    repo = repository("signed")
    apt = Apt(os.path.join(repo, "fastchat.sources"))
    code, out = apt.get("update")
    assert code == 0, out
    code, out = apt.get("download", "--print-uris", "fastchat", "fastchat-model-smollm2")
    assert code == 0 and "/pool/fastchat/fastchat_" in out and "_all.deb" in out, out
    # The key alone, for a sources file that somebody writes.
    with open(apt.sources, "w", encoding="utf-8") as f:
        f.write(f"Types: deb\nURIs: file:{repo}\nSuites: stable\nComponents: main\nSigned-By: {repo}/fastchat-archive-keyring.gpg\n")
    code, out = apt.get("update")
    assert code == 0, out


def test_a_second_run_adds_and_signs_with_the_same_key():
    repo = repository("grows")
    with open(os.path.join(repo, "fastchat.sources"), encoding="utf-8") as f:
        before = f.read()
    do(os.path.join(DEB, "repo"), repo, named(here(), "fastchat-dbgsym_*.deb"))
    with open(os.path.join(repo, "fastchat.sources"), encoding="utf-8") as f:
        assert f.read() == before
    with open(glob.glob(os.path.join(repo, "dists/stable/main/binary-*/Packages"))[0], encoding="utf-8") as f:
        assert sorted(re.findall(r"^Package: (.*)", f.read(), re.M)) == ["fastchat", "fastchat-dbgsym", "fastchat-model-smollm2"]
    assert os.stat(repo + ".key").st_mode & 0o777 == 0o600


def test_apt_refuses_a_repository_that_was_changed_or_signed_by_somebody_else():
    repo = repository("changed-lists")
    for path in glob.glob(os.path.join(repo, "dists/stable/main/binary-*/Packages*")):
        with open(path, "ab") as f:
            f.write(b"\n")
    code, out = Apt(os.path.join(repo, "fastchat.sources")).get("update")
    assert code != 0 and re.search("Hash Sum mismatch|unexpected size", out), out
    other = repository("somebody-else")
    sources = os.path.join(folder(), "crossed.sources")
    with open(os.path.join(other, "fastchat.sources"), encoding="utf-8") as f, open(sources, "w", encoding="utf-8") as to:
        to.write(f.read().replace(f"file:{other}", f"file:{repo}"))
    code, out = Apt(sources).get("update")
    assert code != 0 and "NO_PUBKEY" in out, out


if __name__ == "__main__":
    run(globals())
