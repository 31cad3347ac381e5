"""What the programs of a build need at run time: the promises of -Dlinkage, held against the binaries themselves.

shared   each program needs no library beyond its row in SHARED; none has a GPU's driver in it
static   fastchatd and fastchat need nothing at all and run in an empty root; fastchat-worker needs the C library only
"""
import json
import os
import re
import shutil
import subprocess
import tempfile

from service import BUILD, SANITIZED, Skip, run

LOADER = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
LIBC = {"libc.so.6", "libm.so.6"} | LOADER
SERVICE = LIBC | {"libcjson.so.1", "libcurl.so.4", "libsystemd.so.0"}
SHARED = {
    "fastchat": SERVICE | {"libcrypto.so.3", "libpcre2-8.so.0"},        # checksums of what is pulled; the tokenizer that model info names
    "fastchat-worker": SERVICE | {"libpcre2-8.so.0"},
    "fastchatd": SERVICE | {"libconfig.so.9"},
}
STATIC = {"fastchat": set(), "fastchat-worker": LIBC, "fastchatd": set()}
SANITIZERS = re.compile(r"lib(asan|ubsan|tsan|gcc_s)\.so\.\d+")
CONFIG = """
api = { listen = ( { address = "unix:/run/api.sock"; mode = "0660"; group = "%s"; } ); };
models = ( { name = "a"; device = "scripted"; path = "/a.json"; } );
"""


def linkage():
    with open(os.path.join(BUILD, "meson-info", "intro-buildoptions.json"), encoding="utf-8") as f:
        return next(o["value"] for o in json.load(f) if o["name"] == "linkage")


LINKAGE = linkage()


def readelf(*args):
    return subprocess.run(["readelf", "-W", *args], env=dict(os.environ, LC_ALL="C"), check=True, capture_output=True, text=True).stdout


def needed(program):
    libraries = set(re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", os.path.join(BUILD, program))))
    return {x for x in libraries if not (SANITIZED and SANITIZERS.fullmatch(x))}


def in_empty_root(files, *command):
    """Runs a command in a root that holds nothing but the given files: {path: text} or {path: file to copy}."""
    with tempfile.TemporaryDirectory(prefix="fastchat-root-") as root:
        os.chmod(root, 0o755)
        for path, content in files.items():
            to = root + path
            os.makedirs(os.path.dirname(to), exist_ok=True)
            if os.path.isabs(content):
                shutil.copy(content, to)
            else:
                with open(to, "w", encoding="utf-8") as f:
                    f.write(content)
        chroot = shutil.which("chroot", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        prefix = [] if os.geteuid() == 0 else ["unshare", "-r"]
        if prefix and subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
            raise Skip("an empty root needs root, or user namespaces for everybody")
        done = subprocess.run([*prefix, chroot, root, *command], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


def test_every_program_needs_only_what_its_row_allows():
    allowed = SHARED if LINKAGE == "shared" else STATIC
    for program, libraries in allowed.items():
        assert needed(program) <= libraries, f"{program} needs {sorted(needed(program) - libraries)}"
    assert "libc.so.6" in needed("fastchat-worker"), "the worker must be able to load a driver, so it needs a dynamic C library"


def test_every_program_is_position_independent_and_has_no_executable_stack_or_text_relocations():
    for program in SHARED:
        path = os.path.join(BUILD, program)
        dynamic, headers = readelf("-d", path), readelf("-l", path)
        assert re.search(r"Flags:.*\bPIE\b", dynamic), f"{program}: not PIE"
        assert "TEXTREL" not in dynamic, f"{program}: text relocations"
        assert "GNU_RELRO" in headers, f"{program}: no RELRO"
        assert re.search(r"GNU_STACK.* RW +0x", headers), f"{program}: executable stack"
        has_interpreter = "INTERP" in headers
        assert has_interpreter == (LINKAGE == "shared" or program == "fastchat-worker"), f"{program}: INTERP {has_interpreter}"


def test_the_programs_start_without_an_environment():
    for program in ("fastchatd", "fastchat"):
        done = subprocess.run([os.path.join(BUILD, program), "--version"], env={}, capture_output=True, text=True)
        assert done.returncode == 0 and re.match(r"\S+ \d+\.\d+\.\d+", done.stdout), (program, done)


if LINKAGE == "static":
    def test_version_and_config_check_work_in_an_empty_root():
        for program in ("fastchatd", "fastchat"):
            code, text = in_empty_root({"/" + program: os.path.join(BUILD, program)}, "/" + program, "--version")
            assert code == 0 and text.startswith(program + " "), (code, text)
        files = {"/fastchatd": os.path.join(BUILD, "fastchatd"), "/c.conf": CONFIG % "staff", "/etc/group": "staff:x:50:\n", "/a.json": "{}"}
        code, text = in_empty_root(files, "/fastchatd", "--check-config", "-c", "/c.conf")
        assert code == 0, (code, text)
        code, text = in_empty_root(dict(files, **{"/etc/group": "other:x:50:\n"}), "/fastchatd", "--check-config", "-c", "/c.conf")
        assert code == 78 and 'there is no system group "staff"' in text, (code, text)

    def test_names_come_from_files_whatever_nsswitch_conf_says():
        files = {"/fastchatd": os.path.join(BUILD, "fastchatd"), "/c.conf": CONFIG % "staff", "/etc/group": "staff:x:50:\n", "/a.json": "{}",
                 "/etc/nsswitch.conf": "group: nosuch\n"}
        code, text = in_empty_root(files, "/fastchatd", "--check-config", "-c", "/c.conf")
        assert code == 0, (code, text)


run(globals())
