"""The rig itself: what it boots is a whole Debian, and it leaves nothing behind, however it ends."""
import os
import signal
import subprocess
import sys

from rig import CEILING, HERE, Container, read, run
from service import until


def test_a_minimal_debian_boots_with_systemd_as_its_first_process():
    with Container() as c:
        assert c.run("systemctl", "is-system-running").strip() == "running", c.run("systemctl", "--failed")
        assert c.read("/proc/1/comm") == "systemd\n"
        assert c.read("/etc/debian_version").startswith("12.")
        assert c.try_run("curl", "--version").returncode != 0, "the root is not minimal"
        c.apt("update")
        c.apt("install", "dbus")
        c.run("systemctl", "start", "dbus")
        done = c.unit("sh", "-c", "id -un; cat /proc/self/cgroup", User="nobody", PrivateNetwork="yes")
        assert done.returncode == 0 and done.stdout.startswith("nobody\n") and "\n0::/system.slice/run-" in done.stdout, done


def test_apt_installs_from_the_packages_at_hand():
    with Container() as c:
        c.apt("update")
        c.apt("install", "curl")
        assert c.run("curl", "--version").startswith("curl 7.88.1")
        assert c.sh("curl -sS file:///etc/hostname").strip() == "debian"


def rigs():
    """The cgroups of the rigs below this one."""
    return {os.path.join(os.environ[HERE], name) for name in os.listdir(os.environ[HERE]) if name.startswith("fastchat-rig-")}


def another(pattern):
    """This program once more, as somebody else would start it."""
    env = {k: v for k, v in os.environ.items() if k != HERE}
    return subprocess.Popen([sys.executable, __file__, pattern], env=env, stdout=subprocess.PIPE, text=True)


def ended_by(number):
    """(exit code, cgroup) of a rig that is ended while its machine runs."""
    with another("HOLD") as held:
        try:
            assert held.stdout.readline() == "booted\n"
            cgroup, = rigs()
        finally:
            held.send_signal(number)
        held.stdout.read()                          # to the end of the last process that could write
        return held.wait(CEILING), cgroup


def test_a_rig_that_is_killed_takes_its_machine_along_and_the_next_one_what_the_kernel_left():
    _, cgroup = ended_by(signal.SIGKILL)
    until("no process is in its cgroup", lambda: "populated 0" in read(cgroup + "/cgroup.events"))
    with another("NOTHING") as rig:
        rig.communicate(timeout=CEILING)
    assert not rigs()


def test_a_rig_that_is_told_to_end_leaves_nothing():
    code, _ = ended_by(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM and not rigs(), (code, rigs())


if sys.argv[1:] == ["HOLD"]:
    def test_HOLD():
        with Container():
            print("booted", flush=True)
            signal.pause()

run(globals())
