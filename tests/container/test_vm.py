"""The installed service on an emulated machine: limits that the kernel enforces, devices, and the clock."""
import atexit
import contextlib
import functools
import json
import os
import shutil
import time

from packages import SETTINGS, Installed, model
from rig import WORK, base, do, run
from service import until as until_within
from vm import VM

REAL = "/usr/share/fastchat/models/smollm2.gguf"
SLOW = 1800     # s, a ceiling for what is emulated on a busy machine
GROUP = "/sys/fs/cgroup/system.slice/fastchat.service"


def until(what, probe):
    return until_within(what, probe, SLOW, 0.5)


@functools.cache
def started():
    """The machine, which all tests share: with the service, its real model as "big", and the scripted one as "m"."""
    with Installed() as m:
        m.install("fastchat-model-smollm2", "procps")
        m.settings(settings("load = \"manual\";"))
        m.stop()
        shutil.move(m.dir + "/upper", WORK + "/loaded")
    root = WORK + "/disk"
    for name in (root, WORK + "/disk.inner", WORK + "/disk.upper"):
        os.mkdir(name)
    do("mount", "-t", "overlay", "-o", f"lowerdir={WORK}/loaded:{Installed.layer}:{base()[0]},upperdir={root}.upper,workdir={root}.inner", "rig", root)
    began = time.monotonic()
    machine = VM(root).boot()
    atexit.register(machine.__exit__, None, None, None)
    until("the service runs", lambda: machine.try_run("systemctl", "is-active", "fastchat").returncode == 0)
    print(f"booted, and the service runs, after {time.monotonic() - began:.0f} s")
    return machine


@contextlib.contextmanager
def machine():
    """The machine with the service as it was installed, before and after."""
    vm = started()
    try:
        yield vm
    except BaseException:
        print("--- its journal (last lines)\n" + vm.try_run("journalctl", "-q", "--no-pager", "-n", "80", "-o", "short-monotonic").stdout)
        print(vm.try_run("fastchat", "status").stdout)
        raise
    finally:
        vm.sh("rm -rf /etc/systemd/system/fastchat.service.d; systemctl daemon-reload")
        vm.write(SETTINGS, settings('load = "manual";'))
        vm.try_run("systemctl", "restart", "fastchat")


def settings(extra):
    return f'models = ( {model("m")}, {{ name = "big"; path = "{REAL}"; context = 512; threads = 1; parallel = 1; {extra} }} );\n'


def limit(vm, extra):
    vm.write(SETTINGS, settings(extra))
    return vm.try_run("fastchat", "reload")


def child(vm, name):
    status = json.loads(vm.run("fastchat", "status", "--json"))
    return next((c for c in status["children"] if c.get("model") == name), {})


def answer(vm):
    """Of the scripted model: the real one computes for minutes here."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    text = vm.run("curl", "-sS", "-m", str(SLOW), "http://127.0.0.1:8000/v1/chat/completions", "-d", json.dumps(body))
    assert '"choices"' in text, text
    return json.loads(text)["choices"][0]["message"]["content"]


def leaf(vm, name, file):
    """A file of the control group of a model's worker."""
    return vm.sh(f"cat {GROUP}/worker-{name}-0/{file}").strip()


def test_a_model_out_of_memory_costs_its_worker_alone_and_is_named():
    with machine() as vm:
        pid = vm.show("MainPID")
        limit(vm, "memory_max_mb = 40;")
        until("it is killed for want of memory", lambda: vm.try_run("journalctl", "-q", "FASTCHAT_EVENT=oom", "FASTCHAT_MODEL=big").stdout)
        until("the status says so", lambda: "memory_max_mb = 40" in vm.run("fastchat", "status"))
        assert leaf(vm, "big", "memory.max") == str(40 << 20)
        until("the kernel says so", lambda: "Memory cgroup out of memory" in vm.run("journalctl", "-q", "-k"))
        assert vm.show("MainPID") == pid and vm.show("NRestarts") == "0" and vm.show("Result") == "success"
        assert answer(vm) == "short"
        limit(vm, "memory_max_mb = 1000;")
        until("it has room", lambda: child(vm, "big").get("state") == "ready")
        assert vm.show("MainPID") == pid and vm.show("NRestarts") == "0"


def test_a_model_s_shares_of_processor_and_threads_are_enforced():
    with machine() as vm:
        limit(vm, "cpu_quota = 30; pids_max = 50;")
        until("it is loaded", lambda: child(vm, "big").get("state") == "ready")
        assert leaf(vm, "big", "cpu.max") == "30000 100000" and leaf(vm, "big", "pids.max") == "50"
        stat = dict(line.split() for line in leaf(vm, "big", "cpu.stat").splitlines())
        assert int(stat["nr_throttled"]) > 0, stat
        limit(vm, "cpu_quota = 30; pids_max = 60;")
        assert leaf(vm, "big", "pids.max") == "60" and answer(vm) == "short"


def test_the_unit_s_own_limits_end_nothing_but_what_is_over_them():
    with machine() as vm:
        vm.write("/etc/systemd/system/fastchat.service.d/limits.conf", "[Service]\nTasksMax=200\nMemoryMax=1G\nCPUQuota=150%\n")
        vm.sh("systemctl daemon-reload; systemctl restart fastchat")
        files = vm.sh(f"cd {GROUP}; cat pids.max memory.max cpu.max").split("\n")
        assert files[:3] == ["200", str(1 << 30), "150000 100000"], files
        until("it answers", lambda: answer(vm) == "short")


def test_out_of_memory_of_the_whole_unit_leaves_the_service():
    with machine() as vm:
        vm.write("/etc/systemd/system/fastchat.service.d/limits.conf", "[Service]\nMemoryMax=90M\nMemorySwapMax=0\n")
        vm.sh("systemctl daemon-reload; systemctl restart fastchat")
        pid = vm.show("MainPID")
        vm.try_run("fastchat", "load", "big")
        assert "oom_kill 0\n" not in vm.sh(f"cat {GROUP}/memory.events"), vm.sh(f"cat {GROUP}/memory.events {GROUP}/memory.peak; fastchat status")
        assert vm.show("MainPID") == pid and vm.run("systemctl", "is-active", "fastchat").strip() == "active"
        until("it answers", lambda: answer(vm) == "short")


def test_devices_are_closed_but_for_those_of_the_drop_in():
    with machine() as vm:
        vm.sh("chmod 666 /dev/vda /dev/rtc0")
        example = vm.sh("cat $(find /usr/share/doc/fastchat -name 50-cuda.conf)")
        # The class of a device that this machine has, in place of the GPU's.
        assert "DeviceAllow=char-nvidia*" in example
        example = example.replace("char-nvidia*", "char-rtc")
        # Into a file: the journal does not always know whose the lines of a short life were.
        probe = "ExecStartPre=-/bin/sh -c 'for d in null rtc0 vda; do (: </dev/$$d) && echo $$d is open; done >/var/lib/fastchat/said 2>&1'\n"
        for text, last in (example, "Operation not permitted"), (example + "DevicePolicy=auto\nDeviceAllow=\n", "vda is open"):
            vm.write("/etc/systemd/system/fastchat.service.d/50-cuda.conf", text + probe)
            vm.sh("systemctl daemon-reload; systemctl restart fastchat")
            said = vm.run("cat", "/var/lib/fastchat/said").splitlines()
            assert said[:2] == ["null is open", "rtc0 is open"] and said[2].endswith(last), said
            until("it answers", lambda: answer(vm) == "short")


def test_a_clock_that_jumps_ends_nothing():
    with machine() as vm:
        pids = {(c["role"], c.get("model")): c["pid"] for c in json.loads(vm.run("fastchat", "status", "--json"))["children"]}
        pid = vm.show("MainPID")
        for when in ("2031-01-01 00:00:00", "2025-01-01 00:00:00", "-1 hour", "+2 hours"):
            vm.run("date", "-s", when)
            for _ in range(5):
                assert answer(vm) == "short"
            vm.run("fastchat", "reload")
        assert {(c["role"], c.get("model")): c["pid"] for c in json.loads(vm.run("fastchat", "status", "--json"))["children"]} == pids
        assert vm.show("MainPID") == pid and vm.show("NRestarts") == "0"


run(globals())
