"""Everything that can change changes at random, under load: every answer is whole, and nothing is left behind.

A seeded schedule ($FASTCHAT_SEED; it is printed) reloads, loads, unloads, upgrades and kills while clients ask three models.
`steady` and `lazy` stay configured and loadable, so each of their requests must succeed; only one whose worker or api was
killed meanwhile may end early, and then it has to say so. `guest` comes and goes; its requests may be refused, but not
hang nor be answered wrong. $FASTCHAT_CHANGE_S: how long it goes on (25 s).
"""
import contextlib
import http.client
import os
import random
import shutil
import signal
import socket
import threading
import time

from service import BUILD, CEILING, Service, events, run, scratch, script_file, scripted, until

SECONDS = float(os.environ.get("FASTCHAT_CHANGE_S", "25"))
SEED = int(os.environ.get("FASTCHAT_SEED") or random.randrange(1 << 32))
FOLDER = scratch()
TICKS = 30
SCRIPTS = {name: script_file(FOLDER, name, load_ms=50, rules=[{"match": "go on", "play": [{"repeat": TICKS, "play": [name + " ", {"wait_ms": 20}]}]}],
                             play=["short ", name]) for name in ("steady", "lazy", "guest")}
# What a client may see of a process that was killed under it, or of a model that is not there.
BROKEN = (OSError, http.client.HTTPException)


class Ledger:
    """Clients that ask one model over and over: how many answers were whole, which were not, and when those ran."""

    def __init__(self, s, model, names, strict, n=4):
        self.s, self.model, self.names, self.strict = s, model, names, strict
        self.whole = self.refused = 0
        self.broken, self.wrong = [], []        # (from, to, what it saw)
        self.end = threading.Event()
        self.threads = [threading.Thread(target=self.ask_on, args=(i,), daemon=True) for i in range(n)]
        for t in self.threads:
            t.start()

    def done(self):
        self.end.set()
        for t in self.threads:
            t.join(CEILING)
        assert not any(t.is_alive() for t in self.threads), f"a client of {self.model} hangs"

    def ask_on(self, i):
        dice = random.Random(SEED * 100 + i)
        while not self.end.is_set():
            began, name, unix = time.monotonic(), dice.choice(self.names), dice.random() < 0.3
            try:
                problem = self.stream(name, unix) if dice.random() < 0.5 else self.short(name, unix)
            except BROKEN as e:
                problem = repr(e)
            except Exception as e:              # pylint: disable=broad-except
                self.wrong.append(repr(e))
                return
            if problem:
                self.broken.append((began, time.monotonic(), problem))
                time.sleep(0.02)
            elif problem is None:
                self.whole += 1
            if dice.random() < 0.3:
                time.sleep(dice.random() * 0.1)

    def short(self, name, unix):
        status, _, body = self.s.chat("x", model=name, unix=unix)
        if status == 200:
            text = body["choices"][0]["message"]["content"]
            if text != "short " + self.model:
                self.wrong.append(text)
            return None
        return self.refusal(status, body)

    def stream(self, name, unix):
        c = self.s.connect(unix)
        try:
            c.request("POST", "/v1/chat/completions",
                      '{"model":"%s","stream":true,"messages":[{"role":"user","content":"go on"}]}' % name)
            r = c.getresponse()
            if r.status != 200:
                return self.refusal(r.status, r.read())
            got = list(events(r))
        finally:
            c.close()
        text = "".join(e["choices"][0]["delta"].get("content") or "" for e in got if isinstance(e, dict) and e.get("choices"))
        error = next((e["error"] for e in got if isinstance(e, dict) and "error" in e), None)
        whole = got and got[-1] == "[DONE]" and not error
        if not ((self.model + " ") * TICKS).startswith(text) or (whole and text.count(" ") != TICKS) or error and got[-1] == "[DONE]":
            self.wrong.append((text, got[-2:]))
        return None if whole else f"{text.count(' ')} ticks, then {error or 'nothing'}"

    def refusal(self, status, body):
        if status not in (502, 503) and not (status == 404 and not self.strict):
            self.wrong.append((status, body))
        if not self.strict:
            self.refused += 1
            return False
        return f"{status} {body}"


class Change:
    """The service with its schedule: what it is told, and when which of its children was killed."""

    def __init__(self, s):
        self.s, self.dice = s, random.Random(SEED)
        self.kills, self.done = [], []
        self.lazy_loads_itself = True
        self.extra = os.path.join(FOLDER, "extra.sock")

    def config(self):
        dice = self.dice
        load = f'replicas = {dice.randint(1, 3)}; parallel = {dice.choice((8, 9))}; queue = {dice.randint(40, 90)};'
        steady = scripted("steady", SCRIPTS["steady"], f'{load} aliases = ( "steady-too"{dice.choice(["", ", " + chr(34) + "more" + chr(34)])} );')
        self.lazy_loads_itself = dice.random() < 0.7
        lazy = scripted("lazy", SCRIPTS["lazy"], f'load = "{"on-demand" if self.lazy_loads_itself else "always"}"; keep_alive = {dice.choice((0, 1, -1))}; '
                                                 f'replicas = {dice.randint(1, 2)};')
        guest = scripted("guest", SCRIPTS["guest"], f'load = "{dice.choice(("always", "on-demand", "manual"))}"; keep_alive = 1; '
                                                    f'replicas = {dice.randint(1, 2)};')
        models = [steady, lazy] + [guest] * (dice.random() < 0.7)
        dice.shuffle(models)
        listen = "".join((f', {{ address = "unix:{self.extra}"; mode = "{dice.choice(("0600", "0660"))}"; }}' if dice.random() < 0.4 else "",
                          ', { address = "127.0.0.1:0"; }' if dice.random() < 0.4 else ""))
        return {"models": ",".join(models), "listen": listen,
                "api": f'processes = {dice.randint(1, 3)}; load_wait_s = 120; body_mb = {dice.randint(1, 9)};',
                "controller": f'dispatch = "{dice.choice(("lottery", "shortest_queue"))}";' + ('listen = "127.0.0.1:0";' if dice.random() < 0.2 else ""),
                "supervisor": SUPERVISOR + f'heartbeat_ms = {dice.choice((100, 100, 100, 150))}; memory_mb = {dice.choice((0, 0, 100000))};'}

    # --- what happens; each is told a word for the list of what was done

    def reload(self):
        code, text = self.s.reload(**self.config())
        # A child that is killed as it takes over is a fault that a reload may tell of.
        assert code == 0 or self.killed_lately(), text

    def hangup(self):
        before = self.lazy_loads_itself
        self.s.configure(**self.config())
        self.s.process.send_signal(signal.SIGHUP)
        self.lazy_loads_itself &= before            # both hold until it has been heard

    def nonsense(self):
        with open(self.s.config, encoding="utf-8") as f:
            good = f.read()
        with open(self.s.config, "a", encoding="utf-8") as f:
            f.write("nonsense")
        assert self.s.command("reload")[0] == 1
        with open(self.s.config, "w", encoding="utf-8") as f:
            f.write(good)

    def load(self):
        self.s.command("load", self.dice.choice(("lazy", "guest")))

    def unload(self):
        self.s.command("unload", "lazy" if self.lazy_loads_itself and self.dice.random() < 0.5 else "guest")

    def upgrade(self):
        new = os.path.join(self.s.programs, "new")
        shutil.copy2(os.path.join(BUILD, "fastchatd"), new)
        os.rename(new, os.path.join(self.s.programs, "fastchatd"))
        code, text = self.s.command("upgrade")
        assert code == 0 or self.killed_lately(), text

    def upgrade_signal(self):
        self.s.process.send_signal(signal.SIGUSR2)

    def kill(self):
        victim = self.dice.choice([c for c in self.s.children() if c["pid"]] or [None])
        if victim and victim.get("model") != "steady" or self.dice.random() < 0.5:
            with contextlib.suppress(ProcessLookupError, TypeError):
                self.kills.append((time.monotonic(), victim["role"], victim.get("model")))
                os.kill(victim["pid"], signal.SIGKILL)

    def killed_lately(self):
        return self.kills and time.monotonic() - self.kills[-1][0] < 30

    def go_on(self):
        what = {self.reload: 5, self.hangup: 3, self.nonsense: 1, self.load: 2, self.unload: 3, self.upgrade: 2, self.upgrade_signal: 1, self.kill: 2}
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            act = self.dice.choices(list(what), list(what.values()))[0]
            self.done.append(act.__name__)
            act()
            time.sleep(self.dice.random() * 0.2)


SUPERVISOR = "heartbeat_limit_ms = 20000; restart_budget = 1000; restart_delay_ms = 10; restart_delay_max_ms = 100; "


def programs():
    folder = scratch()
    for name in ("fastchatd", "fastchat-worker"):
        shutil.copy2(os.path.join(BUILD, name), folder)
    return folder


def links(pid):
    """What its descriptors are, for a message."""
    found = []
    for fd in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
        with contextlib.suppress(OSError):
            found.append(fd + ":" + os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def check_ledger(ledger, kills):
    """A request that broke did so while something was killed that it may have used."""
    assert not ledger.wrong, (ledger.model, len(ledger.wrong), ledger.wrong[:3])
    for began, ended, problem in ledger.broken:
        near = [k for k in kills if began - 1 < k[0] < ended + 1 and k[1] in ("api", "worker") and k[2] in (None, ledger.model)]
        assert near or not ledger.strict, (ledger.model, began, ended, problem)


def test_random_changes_under_load_lose_nothing():
    print(f"seed {SEED}, {SECONDS:.0f} s")
    plain = {"models": ",".join((scripted("steady", SCRIPTS["steady"], 'aliases = ( "steady-too" );'),
                                 scripted("lazy", SCRIPTS["lazy"], 'load = "on-demand";'))), "supervisor": SUPERVISOR, "api": "load_wait_s = 120;"}
    with Service(programs=programs(), **plain) as s:
        assert s.command("unload", "lazy")[0] == 0
        before = s.descriptors(s.process.pid)
        change = Change(s)
        ledgers = [Ledger(s, "steady", ("steady", "steady-too"), True), Ledger(s, "lazy", ("lazy",), True), Ledger(s, "guest", ("guest",), False, 2)]
        try:
            change.go_on()
        finally:
            for ledger in ledgers:
                ledger.done()
            print(f"{len(change.done)} changes, {len(change.kills)} kills; " + "; ".join(
                f"{x.model}: {x.whole} whole, {len(x.broken)} cut, {x.refused} refused" for x in ledgers))
        for ledger in ledgers:
            check_ledger(ledger, change.kills)
        assert all(x.whole > 20 for x in ledgers[:2]), "nobody was served"
        # Everything comes to rest, as it was at the beginning.
        assert s.reload(**plain)[0] == 0
        assert s.command("unload", "lazy")[0] == 0
        until("those that leave are gone", lambda: not any(c.get("change") for c in s.children()))
        assert sorted((c["role"], c["state"]) for c in s.children()) == [
            ("api", "ready"), ("controller", "ready"), ("worker", "ready"), ("worker", "stopped")], s.children()
        assert s.answer("x", model="steady") == "short steady"
        assert s.status()["listeners"] == [f"127.0.0.1:{s.port}", f"unix:{s.runtime}/api.sock"]
        assert not os.path.exists(change.extra)
        until("no process is left over", lambda: sorted(s.processes()) == sorted([s.process.pid] + [c["pid"] for c in s.children() if c["pid"]]))
        assert "Z" not in s.processes().values()
        until("queues are empty", lambda: s.stats(model="steady").get("queue_length") == 0)
        until(f"no descriptor is left over ({before} before)", lambda: s.descriptors(s.process.pid) <= before or print(links(s.process.pid)), ceiling=20, step=5)
        sockets = sorted(n.split("-0")[0] for n in os.listdir(s.runtime) if n.endswith(".sock"))
        assert sockets in (["api.sock", "control.sock", "controller.sock", "worker-lazy", "worker-steady"],
                           ["api.sock", "control.sock", "controller.sock", "worker-steady"]), sockets
        assert s.stop() == 0
        assert os.listdir(s.runtime) == ["supervisor.lock"], os.listdir(s.runtime)


def test_many_upgrades_and_reloads_leak_nothing():
    n = 50 if SECONDS > 25 else 8
    models = scripted("steady", SCRIPTS["steady"])
    with Service(models=models, programs=programs(), supervisor=SUPERVISOR) as s:
        def at_rest():
            until("those that leave are gone", lambda: not any(c.get("change") for c in s.children()) and len(s.children()) == 3)
            return s.descriptors(s.process.pid)
        assert s.command("upgrade")[0] == 0
        before = at_rest()
        for i in range(n):
            assert s.command("upgrade")[0] == 0
            for k in range(4):
                assert s.reload(models=models + (f',{scripted("lazy", SCRIPTS["lazy"])}' if k % 2 else ""), supervisor=SUPERVISOR,
                                api=f"processes = {1 + k % 2};", listen=f', {{ address = "unix:{FOLDER}/{i}-{k}.sock"; }}')[0] == 0
        assert s.reload(models=models, supervisor=SUPERVISOR)[0] == 0
        until(f"no descriptor is left over ({before} before)", lambda: at_rest() <= before or print(links(s.process.pid)), step=1)
        assert not [f for f in os.listdir(FOLDER) if f.endswith(".sock")]
        assert s.answer("x", model="steady") == "short steady"


run(globals())
