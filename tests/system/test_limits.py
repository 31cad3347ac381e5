"""Limits per model: what the kernel holds a worker to, what a reload does to them, and what is said where one can not be had.

Control groups are met twice. A real group of this machine, where root may make one: who is in which leaf, and what is left
behind. And files in the shape of groups, which a mount namespace of its own shows to the daemon: what is written where, and
what the counters of an out-of-memory kill lead to. That the kernel then does it is for the virtual machine's tests.
"""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile

from service import Service, Skip, run, scratch, script_file, scripted, until

FOLDER = scratch()
SCRIPT = script_file(FOLDER, "m", play=["yes"])


def worker(s, model="m"):
    """The one that serves, not one on its way."""
    return next(c for c in s.children() if c.get("model") == model and not c.get("change"))


def threads(pid):
    return [int(t) for t in os.listdir(f"/proc/{pid}/task")]


def nices(pid):
    found = set()
    for t in threads(pid):
        with open(f"/proc/{pid}/task/{t}/stat", encoding="utf-8") as f:
            found.add(int(f.read().rsplit(")", 1)[1].split()[16]))
    return found


def cpus(pid):
    found = set()
    for t in threads(pid):
        with open(f"/proc/{pid}/task/{t}/status", encoding="utf-8") as f:
            found |= {line.split()[1] for line in f if line.startswith("Cpus_allowed_list:")}
    return found


def events(s, kind):
    """Lines of the log that hold this."""
    return [line for line in s.log().splitlines() if kind in line]


# ---- without control groups

def test_nice_cpus_and_node_hold_for_every_thread():
    with Service(models=scripted("m", SCRIPT, 'nice = 5; cpus = "0"; numa_node = 0;') + "," + scripted("free", SCRIPT)) as s:
        m, free = worker(s), worker(s, "free")
        assert nices(m["pid"]) == {5} and cpus(m["pid"]) == {"0"}, (nices(m["pid"]), cpus(m["pid"]))
        assert nices(free["pid"]) == {os.getpriority(os.PRIO_PROCESS, 0)}
        assert cpus(free["pid"]) == cpus(os.getpid())
        assert m["not_enforced"] == [] and free["not_enforced"] == [], (m, free)
        shown = {g["name"]: g for g in s.status()["models"]}
        assert (shown["m"]["nice"], shown["m"]["cpus"], shown["m"]["numa_node"]) == (5, "0", 0), shown
        assert not {"nice", "cpus", "numa_node", "memory_max_mb"} & set(shown["free"]), shown
        if os.path.exists(f"/proc/{m['pid']}/numa_maps"):
            with open(f"/proc/{m['pid']}/numa_maps", encoding="utf-8") as f:
                assert any("prefer" in line.split()[1] for line in f)
        assert s.answer("hello") == "yes"


def test_a_reload_sets_nice_for_threads_that_run_and_cpus_for_other_processes():
    with Service(models=scripted("m", SCRIPT, "nice = 5;")) as s:
        before = worker(s)["pid"]
        assert s.reload(models=scripted("m", SCRIPT, "nice = 9;"))[0] == 0
        assert worker(s)["pid"] == before and nices(before) == {9}
        code, text = s.reload(models=scripted("m", SCRIPT, 'nice = 9; cpus = "0";'))
        assert code == 0, text
        after = worker(s)["pid"]
        assert after != before and cpus(after) == {"0"} and nices(after) == {9}
        assert s.answer("hello") == "yes"


class Plain(Service):
    """Without the privilege to be more important than others."""
    wrap = ["sh", "-c", 'renice -n 0 -p $$ >/dev/null && exec "$@"', "sh",      # the tests may have a nice of their own
            "setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice", "prlimit", "--nice=0:0"] if os.getuid() == 0 else []


def test_without_the_privilege_a_lower_nice_takes_another_process_and_a_negative_one_is_said():
    with Plain(models=scripted("m", SCRIPT, "nice = 9;")) as s:
        before = worker(s)["pid"]
        code, text = s.reload(models=scripted("m", SCRIPT, "nice = 3;"))
        assert code == 0, text
        after = worker(s)["pid"]
        assert after != before and nices(after) == {3}
        code, text = s.reload(models=scripted("m", SCRIPT, "nice = -5;"))
        assert code == 0, text
        assert worker(s)["not_enforced"] == ["nice: Permission denied"], worker(s)
        assert len(events(s, "worker m/0 runs without its nice: Permission denied")) == 1
        assert "worker m/0 runs without its nice: Permission denied" in s.command("status")[1]
        last = worker(s)["pid"]
        assert s.reload(models=scripted("m", SCRIPT, "nice = -5; queue = 7;"))[0] == 0
        assert worker(s)["pid"] == last        # what can not be had is no reason for another process
        assert s.answer("hello") == "yes"


def test_limits_of_a_group_that_is_not_there_cost_no_service_and_are_said():
    with Service(models=scripted("m", SCRIPT, "memory_max_mb = 512; cpu_quota = 50; pids_max = 90;")) as s:
        said = worker(s)["not_enforced"]
        assert worker(s)["cgroup"] is None
        assert [text.split(":")[0] for text in said] == ["memory_max_mb", "cpu_quota", "pids_max"], said
        assert len(events(s, "worker m/0 runs without its memory_max_mb: ")) == 1
        assert s.answer("hello") == "yes"
        before = worker(s)["pid"]
        assert s.reload(models=scripted("m", SCRIPT, "memory_max_mb = 0; cpu_quota = 50; pids_max = 90;"))[0] == 0
        assert worker(s)["pid"] == before
        assert [text.split(":")[0] for text in worker(s)["not_enforced"]] == ["cpu_quota", "pids_max"], worker(s)


# ---- in a group of this machine

@contextlib.contextmanager
def delegated_group():
    """A group below the root of the real hierarchy, marked as systemd marks those that it hands over."""
    root = next((p for p in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if os.path.exists(p + "/cgroup.controllers")), None)
    if not root:
        raise Skip("no control groups of version 2 here")
    try:
        group = tempfile.mkdtemp(prefix="fastchat-test-", dir=root)
    except OSError as e:
        raise Skip(f"no control group can be made here: {e}") from e
    try:
        try:
            os.setxattr(group, "trusted.delegate", b"1")
            with open(group + "/cgroup.kill", "r+", encoding="utf-8"):
                pass
        except OSError as e:
            raise Skip(f"control groups are not whole here: {e}") from e
        yield group
    finally:
        with contextlib.suppress(OSError), open(group + "/cgroup.kill", "w", encoding="utf-8") as f:
            f.write("1")

        def gone():
            for leaf in leaves(group):
                with contextlib.suppress(OSError):
                    os.rmdir(f"{group}/{leaf}")
            with contextlib.suppress(OSError):
                os.rmdir(group)
            return not os.path.exists(group)
        until("the group is gone", gone)


def leaves(group):
    return {e.name for e in os.scandir(group) if e.is_dir()}


def procs(group, leaf=""):
    """Of a leaf that is gone: none."""
    with contextlib.suppress(OSError), open(f"{group}/{leaf}/cgroup.procs", encoding="utf-8") as f:
        return {int(line) for line in f}
    return set()


def in_group(group):
    """A service that begins in that group, as systemd starts one."""
    return type("Grouped", (Service,), {"wrap": ["sh", "-c", f'echo 0 > {group}/cgroup.procs && exec "$0" "$@"']})


USUAL = {"supervisor", "controller-0", "api-0", "worker-m-0"}


def test_each_child_has_a_leaf_and_the_group_itself_is_empty():
    with delegated_group() as group, in_group(group)(models=scripted("m", SCRIPT, "memory_max_mb = 512;")) as s:
        assert procs(group) == set() and leaves(group) == USUAL, leaves(group)
        assert procs(group, "supervisor") == {s.process.pid}
        for c in s.children():
            assert procs(group, c["cgroup"]) == {c["pid"]}, c
        with open(group + "/cgroup.controllers", encoding="utf-8") as f:
            has = "memory" in f.read().split()
        assert worker(s)["not_enforced"] == ([] if has else ["memory_max_mb: its control group has no such controller"])


def test_what_a_child_leaves_behind_goes_with_its_leaf():
    with delegated_group() as group, in_group(group)(models=scripted("m", SCRIPT)) as s:
        before = worker(s)["pid"]
        with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stray:
            with open(f"{group}/worker-m-0/cgroup.procs", "w", encoding="utf-8") as f:
                f.write(str(stray.pid))
            os.kill(before, signal.SIGKILL)
            assert stray.wait(180) == -signal.SIGKILL
        until("the worker is back", lambda: worker(s)["state"] == "ready" and worker(s)["pid"] != before)
        until("only leaves of children are there", lambda: leaves(group) == USUAL)
        assert procs(group, worker(s)["cgroup"]) == {worker(s)["pid"]}
        assert worker(s)["last_reason"] == "was ended by signal 9 (SIGKILL)", worker(s)
        assert s.command("unload", "m")[0] == 0
        until("its leaf is gone", lambda: leaves(group) == USUAL - {"worker-m-0"})


def test_a_process_that_takes_anothers_place_has_a_leaf_beside_it():
    with delegated_group() as group, in_group(group)(models=scripted("m", SCRIPT)) as s:
        assert s.reload(models=scripted("m", SCRIPT, 'cpus = "0";'))[0] == 0
        assert worker(s)["cgroup"] == "worker-m-0.1", worker(s)
        until("the old leaf is gone", lambda: leaves(group) == USUAL - {"worker-m-0"} | {"worker-m-0.1"})
        code, text = s.command("upgrade")       # leaves are known to the next image of the supervisor
        assert code == 0, text

        def settled():
            used = {c["cgroup"]: c["pid"] for c in s.children()}
            return len(used) == 3 and leaves(group) == {"supervisor"} | set(used) and all(procs(group, k) == {v} for k, v in used.items())
        until("each child has a leaf", settled)
        assert procs(group, "supervisor") == {s.process.pid} and procs(group) == set()
        assert s.answer("hello") == "yes"


def test_an_upgrade_divides_a_group_that_its_children_are_in():
    with delegated_group() as group:
        os.removexattr(group, "trusted.delegate")
        with in_group(group)(models=scripted("m", SCRIPT, "pids_max = 90;")) as s:
            assert procs(group) == {s.process.pid} | {c["pid"] for c in s.children()} and leaves(group) == set()
            assert worker(s)["not_enforced"] == ["pids_max: no control group is delegated to this service (Delegate= of its unit)"], worker(s)
            os.setxattr(group, "trusted.delegate", b"1")
            code, text = s.command("upgrade")
            assert code == 0, text
            until("each child has a leaf", lambda: all(procs(group, c["cgroup"]) == {c["pid"]} for c in s.children() if c["cgroup"])
                  and len([c for c in s.children() if c["cgroup"]]) == 3 and leaves(group) == USUAL)
            until("those without one are gone", lambda: procs(group, "supervisor") == {s.process.pid})
            assert procs(group) == set()
            assert s.answer("hello") == "yes"


def test_a_service_that_starts_after_a_crash_clears_what_is_left():
    with delegated_group() as group, in_group(group)(models=scripted("m", SCRIPT)) as s:
        os.mkdir(group + "/worker-old-0")
        s.process.kill()
        s.process.wait()
        s.configure(models=scripted("n", SCRIPT))
        s.start()
        until("only leaves of children are there", lambda: leaves(group) == USUAL - {"worker-m-0"} | {"worker-n-0"})


def test_a_group_that_others_are_in_is_left_as_it_is():
    with delegated_group() as group, subprocess.Popen(["sleep", "1000"]) as other:
        try:
            with open(group + "/cgroup.procs", "w", encoding="utf-8") as f:
                f.write(str(other.pid))
            with in_group(group)(models=scripted("m", SCRIPT, "pids_max = 90;")) as s:
                assert other.pid in procs(group) and leaves(group) == set(), leaves(group)
                assert worker(s)["not_enforced"] == [f"pids_max: process {other.pid}, which is none of its own, is in the control group of this service"], worker(s)
        finally:
            other.kill()


# ---- in files that look like a group

FAKE = r"""
import os, sys
root = "/sys/fs/cgroup"
os.setxattr(root, "trusted.delegate", b"1")
def put(path, text=""):
    os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
    with open(f"{root}/{path}", "w") as f:
        f.write(text)
put("cgroup.controllers", "cpu memory pids")
put("cgroup.subtree_control")
put("cgroup.procs")
put("supervisor/cgroup.procs")
for leaf in ("worker-m-0", "worker-m-0.1"):
    for name in ("cgroup.procs", "memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "pids.max"):
        put(f"{leaf}/{name}")
    put(f"{leaf}/memory.current", "1000000")
    put(f"{leaf}/memory.events", "oom 7\noom_kill 7\n")
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Faked(Service):
    """Its /sys/fs/cgroup is a folder of files, in a mount namespace of its own."""
    wrap = ["unshare", "--mount", "--propagation", "private", "sh", "-c",
            'mount -t tmpfs fastchat-test /sys/fs/cgroup && exec "$@"', "sh", sys.executable, "-c", FAKE]

    def __init__(self, **kw):
        with open("/proc/self/cgroup", encoding="utf-8") as f:
            if "0::/\n" not in f.readlines():
                raise Skip("this process is not in the root of the control groups")
        if os.getuid() != 0 or subprocess.run(self.wrap[:-3] + ["true"], capture_output=True, check=False).returncode:
            raise Skip("no mount namespace can be made here")
        super().__init__(**kw)

    def path(self, name):
        return f"/proc/{self.process.pid}/root/sys/fs/cgroup/{name}"

    def put(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)

    def get(self, name):
        with open(self.path(name), encoding="utf-8") as f:
            return f.read()

    def clear(self, leaf="worker-m-0"):
        for name in ("memory.max", "memory.swap.max", "cpu.max", "pids.max"):
            self.put(f"{leaf}/{name}", "")


def test_what_a_leaf_is_told_is_what_the_configuration_says():
    with Faked(models=scripted("m", SCRIPT, "memory_max_mb = 64; cpu_quota = 150; pids_max = 90;")) as s:
        assert " of 64 MB " in s.command("status")[1]
        told = {name: s.get(f"worker-m-0/{name}") for name in ("memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "pids.max", "cgroup.procs")}
        assert told == {"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1", "cpu.max": "150000 100000",
                        "pids.max": "90", "cgroup.procs": "0"}, told
        assert worker(s)["not_enforced"] == [] and worker(s)["cgroup"] == "worker-m-0"
        before = worker(s)["pid"]
        s.clear()
        assert s.reload(models=scripted("m", SCRIPT, "memory_max_mb = 128; cpu_quota = 150;"))[0] == 0
        assert worker(s)["pid"] == before
        assert (s.get("worker-m-0/memory.max"), s.get("worker-m-0/pids.max")) == ("134217728", "max")
        s.clear()
        assert s.reload(models=scripted("m", SCRIPT, "cpu_quota = 150;"))[0] == 0
        assert worker(s)["pid"] == before
        assert (s.get("worker-m-0/memory.max"), s.get("worker-m-0/memory.swap.max")) == ("max", "max")


def test_a_limit_below_what_is_used_now_ends_no_answer():
    with Faked(models=scripted("m", SCRIPT, "memory_max_mb = 64;")) as s:
        before = worker(s)["pid"]
        s.put("worker-m-0/memory.current", str(50 << 20))
        s.clear()
        code, text = s.reload(models=scripted("m", SCRIPT, "memory_max_mb = 32;"))
        assert code == 0, text
        assert worker(s)["pid"] != before and worker(s)["cgroup"] == "worker-m-0.1"
        assert (s.get("worker-m-0/memory.max"), s.get("worker-m-0.1/memory.max")) == ("", "33554432")


def end_for_want_of_memory(s, counters):
    before = worker(s)["pid"]
    s.put("worker-m-0/memory.events", counters)
    os.kill(before, signal.SIGKILL)
    return until("the supervisor knows", lambda: (c := worker(s))["pid"] != before and c)


def test_an_out_of_memory_kill_is_told_with_its_model_and_what_to_change():
    slow = "restart_delay_ms = 60000; restart_delay_max_ms = 60000;"
    with Faked(models=scripted("m", SCRIPT, "memory_max_mb = 64;"), supervisor=slow, api="load_wait_s = 0;") as s:
        reason = ("needed more memory than its limit memory_max_mb = 64 of model 'm': raise it, or lower context, parallel or kv_tokens")
        assert end_for_want_of_memory(s, "oom 8\noom_kill 8\n")["reason"] == reason
        until("clients hear of it", lambda: reason in str(s.chat("hello")))
        assert s.chat("hello")[0] == 503
        assert reason in s.command("status")[1]
        assert len(events(s, reason)) == 2, s.log()     # as what happened, and as why it is down


def test_memory_that_others_took_is_told_apart_and_so_is_a_plain_signal():
    with Faked(models=scripted("m", SCRIPT, "memory_max_mb = 64;")) as s:
        end_for_want_of_memory(s, "oom 7\noom_kill 8\n")
        reason = until("it is up again", lambda: (c := worker(s))["state"] == "ready" and c["last_reason"])
        assert reason.startswith("was ended by the kernel: the machine, or the service's own limit (MemoryMax), had no memory left;"), reason
        end_for_want_of_memory(s, "oom 8\noom_kill 8\n")       # the count is that of the start: nothing new
        until("it is up again", lambda: worker(s)["restarts"] == 2 and worker(s)["state"] == "ready")
        assert worker(s)["last_reason"] == "was ended by signal 9 (SIGKILL)", worker(s)


def test_an_end_after_too_many_threads_names_their_limit():
    with Faked(models=scripted("m", SCRIPT, "pids_max = 90;")) as s:
        s.put("worker-m-0/pids.events", "max 3\n")
        os.kill(worker(s)["pid"], signal.SIGKILL)
        reason = until("it is up again", lambda: (c := worker(s))["state"] == "ready" and c["last_reason"])
        assert reason == "was ended by signal 9 (SIGKILL); it has met its limit pids_max = 90 of model 'm'", reason


run(globals())
