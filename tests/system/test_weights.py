"""Packed weights are in memory once: for replicas, restarts, an upgrade; and what a worker takes is what was planned."""
import contextlib
import os
import re
import shutil
import signal
import subprocess

from service import BUILD, SANITIZED, NotHere, Service, real_model, run, scratch, until

TAKEN, PACKED, ALONE = "MB that an earlier process packed", "MB packed, for other processes too", "MB packed, for this process alone"
SPARE_KB = 48 << 10     # beside file, packed weights, KV and scratch


def model(path, extra="replicas = 2;", name="m"):
    return f'{{ name = "{name}"; path = "{path}"; {extra} }}'


def workers(s, n=2):
    """Those that are ready, once there are n of them and no others."""
    def probe():
        found = [c for c in s.children() if c["role"] == "worker"]
        return found if len(found) == n and all(c["state"] == "ready" for c in found) else None
    return until(f"{n} workers are ready", probe)


def mappings(pid):
    """Of packed weights: [(inode, rights, {key: kB})]."""
    found = []
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as f:
        for line in f:
            head = re.match(r"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ (\d+)\s*(.*)", line)
            if head:
                found.append((int(head[2]), head[1], {}) if "memfd:fastchat-weights" in head[3] else None)
            elif found and found[-1]:
                pair = re.match(r"(\w+):\s+(\d+) kB", line)
                if pair:
                    found[-1][2][pair[1]] = int(pair[2])
    return [m for m in found if m]


def one_mapping(pid):
    found = mappings(pid)
    assert len(found) == 1, found
    return found[0]


def inodes(s, n=2):
    return {one_mapping(c["pid"])[0] for c in workers(s, n)}


def holders(s):
    """Descriptors of packed weights in any process of the service."""
    found = []
    for pid in s.processes():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if "memfd:fastchat-weights" in os.readlink(f"/proc/{pid}/fd/{fd}"):
                        found.append((pid, fd))
    return found


def count(s, what):
    return s.log().count(what)


def test_the_second_replica_maps_what_the_first_packed():
    with Service(models=model(real_model())) as s:
        one, two = (one_mapping(c["pid"]) for c in workers(s))
        assert one[0] == two[0] and one[1] == two[1] == "r--s", (one, two)
        assert (count(s, PACKED), count(s, TAKEN)) == (1, 1), s.log()
        # The same text from both: nothing that both read may depend on who packed it.
        texts = {s.answer("Name a colour.", max_tokens=8, temperature=0) for _ in range(4)}
        assert len(texts) == 1, texts
        one, two = (one_mapping(c["pid"])[2] for c in workers(s))
        assert one["Pss"] + two["Pss"] < 1.2 * one["Rss"], (one, two)
        for c in workers(s):
            assert c["shared_kb"] > 0.9 * one["Rss"] and c["rss_kb"] > c["shared_kb"], c
        assert [pid for pid, _ in holders(s)] == [s.process.pid], holders(s)


def test_a_worker_that_died_gets_them_back():
    with Service(models=model(real_model(), "")) as s:
        first = workers(s, 1)[0]
        if count(s, ALONE):
            raise NotHere("this kernel has no huge pages for shared memory, so one replica keeps its weights for itself")
        inode = one_mapping(first["pid"])[0]
        os.kill(first["pid"], signal.SIGKILL)
        until("another one is ready", lambda: [c for c in workers(s, 1) if c["pid"] != first["pid"]])
        assert inodes(s, 1) == {inode}
        assert (count(s, PACKED), count(s, TAKEN)) == (1, 1), s.log()
        assert s.answer("Name a colour.", max_tokens=4)


def test_a_file_that_changed_is_packed_anew():
    path = os.path.join(scratch(), "m.gguf")
    shutil.copy(real_model(), path)
    with Service(models=model(path)) as s:
        before = inodes(s)
        shutil.copy(path, path + ".new")
        os.rename(path + ".new", path)
        code, text = s.reload(models=model(path))
        assert code == 0, text
        after = inodes(s)
        assert len(after) == 1 and after != before
        assert (count(s, PACKED), count(s, TAKEN)) == (2, 2), s.log()
        assert len(holders(s)) == 1


def test_another_instruction_set_replaces_the_workers_and_keeps_them():
    def engines(s):
        return until("the statistics are there", lambda: (lambda e: e if all(e) else None)({c.get("stats", {}).get("engine") for c in workers(s)}))

    def asked(name):
        return model(real_model(), f'replicas = 2; isa = "{name}";')

    with Service(models=asked("scalar"), env={"FASTCHAT_ISA": "of the environment"}) as s:
        before, inode = {c["pid"] for c in workers(s)}, inodes(s)
        assert engines(s) == {"cpu scalar"} and s.status()["models"][0]["isa"] == "scalar", s.status()
        text = s.answer("Name a colour.", max_tokens=4, temperature=0)
        code, said = s.reload(models=asked("mmx"))
        assert code == 1 and 'models[0].isa: "mmx" is unknown; did you mean "amx"?' in said, said
        code, said = s.reload(models=asked("neon" if os.uname().machine == "x86_64" else "avx2"))
        assert code == 1 and "is not known here; this machine has: scalar" in said and "goes on as it is" in said, said
        code, said = s.reload(models=asked("auto"))
        assert code == 1 and 'FASTCHAT_ISA: instruction set "of the environment" is not known here' in said, said
        assert {c["pid"] for c in workers(s)} == before and s.answer("Name a colour.", max_tokens=4, temperature=0) == text
        names = re.search(r"this machine has: (.*?)(?:;|$)", said, re.M)[1].split(", ")
        code, said = s.reload(models=asked(names[-1]))
        assert code == 0, said
        assert engines(s) == {"cpu " + names[-1]} and inodes(s) == inode
        assert len(names) == 1 or not before & {c["pid"] for c in workers(s)}
        assert count(s, PACKED) == 1, s.log()
        assert s.answer("Name a colour.", max_tokens=4)


def test_an_upgrade_keeps_them():
    folder = scratch()
    for name in ("fastchatd", "fastchat-worker"):
        shutil.copy2(os.path.join(BUILD, name), folder)
    with Service(models=model(real_model()), programs=folder) as s:
        before, inode = {c["pid"] for c in workers(s)}, inodes(s)
        code, text = s.command("upgrade")
        assert code == 0, text
        until("the old processes are gone", lambda: not before & {c["pid"] for c in workers(s)})
        assert inodes(s) == inode
        assert (count(s, PACKED), count(s, TAKEN)) == (1, 3), s.log()
        assert [pid for pid, _ in holders(s)] == [s.process.pid], holders(s)


def test_unloading_lets_them_go():
    with Service(models=model(real_model())) as s:
        workers(s)
        code, text = s.command("unload", "m")
        assert code == 0, text
        until("nobody holds them", lambda: not holders(s))
        code, text = s.command("load", "m")
        assert code == 0, text
        assert len(inodes(s)) == 1
        assert (count(s, PACKED), count(s, TAKEN)) == (2, 2), s.log()


def test_each_has_its_own_where_sharing_is_switched_off():
    with Service(models=model(real_model(), 'replicas = 2; share_weights = "never";')) as s:
        assert not any(mappings(c["pid"]) for c in workers(s))
        assert count(s, ALONE) == 2 and not holders(s)


def rollup(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as f:
        return {m[1]: int(m[2]) for m in re.finditer(r"^(\w+):\s+(\d+) kB", f.read(), re.M)}


def peak_kb(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return int(re.search(r"^VmHWM:\s+(\d+) kB", f.read(), re.M)[1])


def planned_kb(path, context, parallel):
    """What `fastchat model info` says of it: {row: kB}."""
    got = subprocess.run([os.path.join(BUILD, "fastchat"), "model", "info", "--context", str(context), "--parallel", str(parallel), path],
                         capture_output=True, text=True, check=True)
    rows = re.findall(r"^(weights|scratch|logits|sampling|KV cache)\s+([0-9.]+) ([kMG])B", got.stdout, re.M)
    assert len(rows) == 5, got.stdout
    return {name: float(v) * {"k": 1e3, "M": 1e6, "G": 1e9}[unit] / 1024 for name, v, unit in rows}


def memory_is_planned(path):
    if SANITIZED:
        raise NotHere("a sanitizer takes memory of its own")
    context, parallel = 1024, 4
    plan = planned_kb(path, context, parallel)
    with Service(models=model(path, f"context = {context}; parallel = {parallel};")) as s:
        for i in range(4):
            s.answer(f"Tell me {i + 2} things about the sea.", max_tokens=16)
        pid = workers(s, 1)[0]["pid"]
        most = os.path.getsize(path) / 1024 + sum(plan.values()) + SPARE_KB
        assert peak_kb(pid) <= most, (peak_kb(pid), most, plan)
        # The file was left behind when its weights were packed.
        now = rollup(pid)
        assert now["Rss"] <= sum(plan.values()) + SPARE_KB, (now, plan)


def test_the_default_model_takes_what_was_planned():
    memory_is_planned(real_model())


def test_gemma_takes_what_was_planned():
    memory_is_planned(real_model("gemma3"))


run(globals())
