"""org.fastchat.Manager1 on a bus of the test's own: what it shows and does, for whom, and what a bus that is absent, new, frozen or
hostile costs the service, which is nothing."""
import contextlib
import os
import re
import signal
import socket
import threading
import xml.etree.ElementTree as xml

from bus import BUS, INTERACTIVE, MODEL, NAME, NOBODY, NODE, PATH, PROPERTIES, REPLICA, Client, Daemon, Failed, Polkit, refused
from service import CEILING, SOURCE, Service, run, scratch, script_file, scripted, until

TMP = scratch()
HELLO = script_file(TMP, "hello", play=["Hel", "lo", " wor", "ld"])
LONG = script_file(TMP, "long", play=["a", {"repeat": 20, "play": [{"wait_ms": 100}, "b"]}])
NEVER = script_file(TMP, "never", load_ms=80000000)
RESTARTS = "restart_delay_ms = 10; restart_delay_max_ms = 50; restart_budget = 100;"
M = scripted("m", HELLO, 'aliases = ( "alias-of-m" );')
MANUAL = scripted("manual", HELLO, 'load = "manual";')
ODD = "org/m-1.x:y+z@w"
ODD_PATH = NODE + "org_2fm_2d1_2ex_3ay_2bz_40w"
DENIED, LIMITS = BUS + ".Error.AccessDenied", BUS + ".Error.LimitsExceeded"


def error(name):
    return "org.fastchat.Error." + name


@contextlib.contextmanager
def on_bus(models=M, bus=None, **kw):
    """A bus and a service on it."""
    with contextlib.ExitStack() as stack:
        d = bus or stack.enter_context(Daemon())
        s = stack.enter_context(Service(models=models, env=d.env, **{"supervisor": RESTARTS, **kw}))
        d.wait_named()
        yield d, s


def worker(s, model, replica=0):
    return s.child("worker", model, replica)


# ---- what it shows

def test_models_and_replicas_are_objects_with_what_status_says():
    models = ", ".join([scripted(ODD, HELLO, 'replicas = 2; aliases = ( "x" );'), MANUAL])
    with on_bus(models) as (d, s), Client(d) as c:
        objects = c.objects()
        assert set(objects) == {ODD_PATH, ODD_PATH + "/0", ODD_PATH + "/1", NODE + "manual", NODE + "manual/0"}, objects
        model = objects[ODD_PATH][MODEL]
        assert model["Name"] == ODD and model["Aliases"] == ["x"] and model["Path"] == HELLO and model["Load"] == "always"
        assert (model["State"], model["Reason"], model["Ready"], model["Restarts"]) == ("ready", "", 2, 0)
        assert model["Replicas"] == [ODD_PATH + "/0", ODD_PATH + "/1"]
        assert model["Pid"] == [worker(s, ODD, i)["pid"] for i in range(2)] and model["Memory"] > 1 << 20 and model["QueueLength"] == 0
        for i in range(2):
            r = c.properties(ODD_PATH + f"/{i}", REPLICA)
            assert (r["Number"], r["Model"], r["State"], r["Pid"]) == (i, ODD_PATH, "ready", worker(s, ODD, i)["pid"]), r
            assert r["Memory"] > 1 << 20 and (r["QueueLength"], r["Running"], r["Waiting"], r["Restarts"]) == (0, 0, 0, 0)
        assert objects[NODE + "manual"][MODEL]["Pid"] == [0] and objects[NODE + "manual"][MODEL]["Memory"] == 0
        assert c.manager("ListModels") == ([(ODD, "ready", "", 2, 2, ODD_PATH), ("manual", "stopped", "", 0, 1, NODE + "manual")],)
        manager = c.properties(PATH, NAME)
        assert manager["Version"] == s.status()["version"] and manager["ConfigPath"] == s.config and manager["State"] == "serving"
        assert manager["Status"] == "serving, 2 of 3 workers ready" and f"127.0.0.1:{s.port}" in manager["Listeners"], manager


def test_queues_are_read_when_asked_for():
    with on_bus(scripted("m", NEVER.replace("never", "long"), "parallel = 1;")) as (d, s), Client(d) as c:
        with s.stream("x") as one, s.stream("y"):
            one.readline()
            until("one runs and one waits", lambda: (c.get(NODE + "m/0", REPLICA, "Running"), c.get(NODE + "m/0", REPLICA, "Waiting")) == (1, 1))
            assert c.get(NODE + "m", MODEL, "QueueLength") == 2


def test_introspection_reads_well():
    with on_bus() as (d, _):
        code, tree = d.busctl("--list", "tree", NAME)
        assert code == 0 and tree.split() == ["/", "/org", "/org/fastchat", PATH, PATH + "/model", NODE + "m", NODE + "m/0"], tree
        code, text = d.busctl("introspect", NAME, PATH)
        assert code == 0, text
        for line in (r"\.LoadModel +method +s +- ", r"\.ListModels +method +- +a\(sssuuo\) ", r"\.State +property +s +\"serving\" +emits-change",
                     r"\.ModelStateChanged +signal +sss "):
            assert re.search(line, text), (line, text)
        _, text = d.busctl("introspect", "--xml-interface", NAME, PATH)
        node = xml.fromstring(text)
        named = {m.get("name"): [(a.get("type"), a.get("name")) for a in m.findall("arg")] for i in node.findall("interface") if i.get("name") == NAME
                 for m in list(i.findall("method")) + list(i.findall("signal"))}
        assert named == {"Drain": [("s", "model")], "ListModels": [("a(sssuuo)", "models")], "LoadModel": [("s", "model")], "Reload": [],
                         "UnloadModel": [("s", "model")], "Upgrade": [], "ModelStateChanged": [("s", "model"), ("s", "state"), ("s", "reason")],
                         "WorkerRestarted": [("s", "model"), ("u", "replica"), ("u", "pid"), ("t", "restarts"), ("s", "reason")]}, named


def test_a_path_that_is_nobodys_is_no_object():
    with on_bus() as (d, _), Client(d) as c:
        for path in ("/model", "/model/_6d", "/model/m/1", "/model/m/00", "/model/m/_30", "/model/nobody", "/model/m/0/0", "/nothing"):
            name, _ = refused(lambda p=path: c.get(PATH + p, MODEL, "State"))
            assert name in (BUS + ".Error.UnknownObject", BUS + ".Error.UnknownInterface", BUS + ".Error.UnknownProperty"), (path, name)
        assert refused(lambda: c.get(NODE + "m/0", MODEL, "State")) and refused(lambda: c.get(NODE + "m", REPLICA, "State"))


# ---- what it does

def test_models_are_loaded_and_unloaded_and_callers_wait_for_it():
    with on_bus(", ".join([M, MANUAL])) as (d, s), Client(d) as c:
        assert c.manager("LoadModel", "s", "manual") == () and worker(s, "manual")["state"] == "ready"
        assert c.get(NODE + "manual", MODEL, "State") == "ready"
        assert c.manager("UnloadModel", "s", "alias-of-m") == () and worker(s, "m")["state"] == "stopped"
        assert c.manager("LoadModel", "s", "m") == ()
        assert c.manager("Drain", "s", "m") == () and worker(s, "m")["state"] == "stopped" and s.process.poll() is None
        assert d.busctl("call", NAME, PATH, NAME, "LoadModel", "s", "m") == (0, "")
        assert s.answer("hi") == "Hello world"


def test_a_reload_brings_and_takes_objects_and_a_wrong_one_changes_nothing():
    with on_bus() as (d, s), Client(d) as c:
        c.listen()
        s.configure(models=M + ", " + scripted("new", HELLO, "replicas = 2;"), supervisor=RESTARTS)
        assert c.manager("Reload") == ()
        for path in ("/model/new", "/model/new/0", "/model/new/1"):
            c.signal("InterfacesAdded", lambda m, p=path: m.body[0] == PATH + p and m.path == PATH)
        assert len(c.get(NODE + "new", MODEL, "Replicas")) == 2
        s.configure(models=M + ", " + scripted("new", HELLO, "replicas = 1;"), supervisor=RESTARTS)
        assert c.manager("Reload") == ()
        c.signal("InterfacesRemoved", lambda m: m.body == (NODE + "new/1", [REPLICA]))
        c.signal("PropertiesChanged", lambda m: m.path == NODE + "new" and m.body[1].get("Replicas") == [NODE + "new/0"])
        s.configure(models=M, supervisor=RESTARTS)
        assert c.manager("Reload") == ()
        c.signal("InterfacesRemoved", lambda m: m.body == (NODE + "new", [MODEL]))
        s.configure(models=M, supervisor="drain_s = -7;")
        name, text = refused(lambda: c.manager("Reload"))
        assert name == error("BadConfiguration") and "drain_s" in text and "the configuration in force stays" in text, text
        assert set(c.objects()) == {NODE + "m", NODE + "m/0"}


def test_a_worker_that_dies_is_told_of():
    with on_bus() as (d, s), Client(d) as c:
        c.listen()
        pid = worker(s, "m")["pid"]
        os.kill(pid, signal.SIGKILL)
        m = c.signal("WorkerRestarted")
        assert m.path == PATH and m.body[:2] == ("m", 0) and m.body[2] not in (0, pid) and m.body[3:] == (1, "was ended by signal 9 (SIGKILL)"), m.body
        m = c.signal("ModelStateChanged", lambda m: m.body == ("m", "ready", ""))
        assert m.path == PATH
        r = c.properties(NODE + "m/0", REPLICA)
        assert (r["State"], r["Restarts"], r["LastReason"]) == ("ready", 1, "was ended by signal 9 (SIGKILL)") and r["Pid"] == worker(s, "m")["pid"]
    with on_bus() as (d, s), Client(d) as c:
        c.listen()
        os.kill(worker(s, "m")["pid"], signal.SIGKILL)
        seen = {REPLICA: {}, MODEL: {}, NAME: {}}
        while not (seen[REPLICA].get("State") == seen[MODEL].get("State") == "ready" and seen[REPLICA].get("Restarts")):
            m = c.signal("PropertiesChanged")
            seen[m.body[0]].update(m.body[1])
            assert m.path == {REPLICA: NODE + "m/0", MODEL: NODE + "m", NAME: PATH}[m.body[0]]
        pid = worker(s, "m")["pid"]
        assert (seen[REPLICA]["Restarts"], seen[REPLICA]["Pid"]) == (1, pid) and (seen[MODEL]["Restarts"], seen[MODEL]["Pid"]) == (1, [pid]), seen
        assert (seen[MODEL]["Ready"], seen[NAME]["Status"]) == (1, "serving, 1 of 1 workers ready"), seen


def test_a_model_that_can_not_load_says_why():
    bad = script_file(TMP, "bad", load_error="tensor 7 is bad")
    with on_bus(M + ", " + scripted("bad", bad)) as (d, _), Client(d) as c:
        until("it is failed", lambda: c.get(NODE + "bad", MODEL, "State") == "failed")
        assert "tensor 7 is bad" in c.get(NODE + "bad", MODEL, "Reason")
        name, text = refused(lambda: c.manager("LoadModel", "s", "bad"))
        assert name == error("Failed") and "tensor 7 is bad" in text, (name, text)


def test_a_drain_answers_when_the_service_has_stopped():
    with on_bus(scripted("m", LONG), supervisor="drain_s = 600;") as (d, s), Client(d) as c:
        c.listen()
        with s.stream("x") as r:
            r.readline()
            serial = c.ask(NAME, PATH, NAME, "Drain", "s", "")
            c.signal("PropertiesChanged", lambda m: m.path == PATH and m.body[1].get("State") == "stopping")
            assert refused(lambda: c.manager("Reload"))[0] == error("Stopping")
            assert c.get(NODE + "m/0", REPLICA, "State") == "ready"
            assert r.read().endswith(b"data: [DONE]\n\n")
        assert c.answer(serial) == ()
        assert s.process.wait(CEILING) == 0


def test_an_upgrade_answers_and_comes_back_and_leaks_nothing():
    with on_bus(", ".join([M, scripted("never", NEVER, 'load = "manual";')])) as (d, s), Client(d) as c:
        fds = []
        for _ in range(5):
            owner = d.owner()
            waits = c.ask(NAME, PATH, NAME, "LoadModel", "s", "never")
            c.listen()
            assert c.manager("Upgrade") == ()
            name, text = refused(lambda w=waits: c.answer(w))
            assert name == error("Failed") and "a new program takes over" in text, (name, text)
            until("the next image has the name", lambda o=owner: d.owner() not in (None, o))
            c.manager("UnloadModel", "s", "never")
            until("all has followed", lambda: c.get(PATH, NAME, "State") == "serving" and not any(x.get("change") for x in s.children()))
            assert c.get(NODE + "m/0", REPLICA, "Pid") == worker(s, "m")["pid"]
            fds.append(s.descriptors(s.process.pid))
        until("it has no more descriptors than after the first", lambda: s.descriptors(s.process.pid) <= fds[0])
        assert s.log().count(NAME + " is on the bus") == 6


# ---- for whom

def test_without_polkit_only_root_may_change_something_and_everybody_may_read():
    with on_bus(", ".join([M, MANUAL])) as (d, s), Client(d, NOBODY) as c:
        for member, args in (("Reload", ()), ("Upgrade", ()), ("Drain", ("s", "")), ("Drain", ("s", "m")), ("LoadModel", ("s", "manual")), ("UnloadModel", ("s", "m"))):
            name, text = refused(lambda m=member, a=args: c.manager(m, *a))
            assert name == DENIED and "polkit is not running" in text, (member, name, text)
        assert len(c.manager("ListModels")[0]) == 2 and c.get(PATH, NAME, "State") == "serving" and len(c.objects()) == 4
        assert d.busctl("introspect", NAME, NODE + "m", user=NOBODY)[0] == 0
        for path, interface, name in ((PATH, NAME, "Version"), (NODE + "m", MODEL, "Name")):
            assert refused(lambda p=path, i=interface, n=name: c.call(NAME, p, PROPERTIES, "Set", "ssv", i, n, ("s", "x")))[0] == DENIED
            with Client(d) as root:
                assert refused(lambda p=path, i=interface, n=name: root.call(NAME, p, PROPERTIES, "Set", "ssv", i, n, ("s", "x")))[0] == BUS + ".Error.PropertyReadOnly"
        assert s.process.poll() is None and worker(s, "m")["state"] == "ready" and worker(s, "manual")["state"] == "stopped"


def test_polkit_decides_for_others_and_is_not_asked_about_root():
    verdict = {}
    with on_bus(", ".join([M, MANUAL])) as (d, s), Polkit(d, lambda q: verdict["is"]) as polkit, Client(d, NOBODY) as c, Client(d) as root:
        root.manager("LoadModel", "s", "alias-of-m")
        assert polkit.questions == []
        verdict["is"] = (True, False)
        assert c.manager("LoadModel", "s", "manual") == () and worker(s, "manual")["state"] == "ready"
        assert polkit.questions[-1] == {"subject": ("system-bus-name", c.name), "action": "org.fastchat.manage-models", "details": {"model": "manual"},
                                        "interact": False}, polkit.questions
        assert c.manager("UnloadModel", "s", "alias-of-m", flags=INTERACTIVE) == ()
        assert polkit.questions[-1]["details"] == {"model": "m"} and polkit.questions[-1]["interact"]
        assert c.manager("Reload") == () and (polkit.questions[-1]["action"], polkit.questions[-1]["details"]) == ("org.fastchat.reload", {})
        verdict["is"] = (False, False)
        for member, args, action in (("Reload", (), "reload"), ("Upgrade", (), "upgrade"), ("Drain", ("s", ""), "stop"), ("Drain", ("s", "m"), "manage-models")):
            assert refused(lambda m=member, a=args: c.manager(m, *a))[0] == DENIED
            assert polkit.questions[-1]["action"] == "org.fastchat." + action
        verdict["is"] = (False, True)
        assert refused(lambda: c.manager("Reload"))[0] == BUS + ".Error.InteractiveAuthorizationRequired"
        assert refused(lambda: c.manager("Reload", flags=INTERACTIVE))[0] == DENIED
        assert f"user {NOBODY} asks over the bus: load manual" in s.log()


def test_a_polkit_that_is_broken_denies():
    def fail(_):
        raise Failed("org.freedesktop.PolicyKit1.Error.Failed", "the tables are empty")
    for decide in (fail, lambda q: "a string"):
        with on_bus() as (d, s), Polkit(d, decide), Client(d, NOBODY) as c:
            assert refused(lambda: c.manager("Reload"))[0] == DENIED
            assert "was read again" not in s.log()


def test_a_polkit_that_is_silent_hinders_nobody_else():
    with on_bus(", ".join([M, MANUAL])) as (d, s), Client(d, NOBODY) as c, Client(d) as root:
        with Polkit(d, lambda q: None) as polkit:
            waits = [c.ask(NAME, PATH, NAME, "LoadModel", "s", "manual", flags=INTERACTIVE) for _ in range(3)]
            until("polkit was asked", lambda: len(polkit.questions) == 3)
            assert root.manager("Reload") == () and s.answer("hi") == "Hello world"
            assert worker(s, "manual")["state"] == "stopped"
        for serial in waits:                # it ended
            assert refused(lambda n=serial: c.answer(n))[0] == DENIED
        assert worker(s, "manual")["state"] == "stopped"


def test_the_files_for_the_bus_and_for_polkit_are_whole():
    units = os.path.join(SOURCE, "units")
    actions = {a.get("id"): a for a in xml.parse(os.path.join(units, "org.fastchat.policy")).getroot().findall("action")}
    with open(os.path.join(SOURCE, "daemon", "supervisor", "bus.c"), encoding="utf-8") as f:
        asked = set(re.findall(r'"(org\.fastchat\.[a-z][a-z-]*)"', f.read()))
    assert set(actions) == asked and len(asked) == 4, (set(actions), asked)
    for name, a in actions.items():
        assert a.find("description").text and a.find("message").text, name
        assert {d.tag: d.text for d in a.find("defaults")} == {"allow_any": "auth_admin", "allow_inactive": "auth_admin", "allow_active": "auth_admin_keep"}
        # the service is not root, and polkit answers others about an action of their own only
        assert {n.get("key"): n.text for n in a.findall("annotate")} == {"org.freedesktop.policykit.owner": "unix-user:_fastchat"}
    bus = xml.parse(os.path.join(units, NAME + ".conf")).getroot()
    assert [(p.get("context"), p.get("user")) for p in bus.findall("policy")] == [("default", None), (None, "root"), (None, "_fastchat")]


# ---- what becomes of the service

def test_without_a_bus_everything_else_works():
    with Service(models=M, supervisor=RESTARTS, env={"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={TMP}/no-bus"}) as s:
        assert s.answer("hi") == "Hello world" and s.command("reload")[0] == 0 and s.command("upgrade")[0] == 0
        assert s.log().count("no bus: ") == 2, s.log()      # an upgrade's image is another one
    for address in ("nonsense", "unix:path=" + TMP, "unix:path=/" + "x" * 300, "tcp:host=127.0.0.1,port=1"):
        with Service(models=M, env={"DBUS_SYSTEM_BUS_ADDRESS": address}) as s:
            assert s.answer("hi") == "Hello world"


def test_a_bus_that_accepts_and_says_nothing_hinders_nobody():
    path = os.path.join(scratch(), "mute")
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(path)
        mute.listen(1)
        with Service(models=M, supervisor=RESTARTS, env={"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={path}"}) as s:
            with mute.accept()[0] as taken:
                assert s.answer("hi") == "Hello world" and s.command("reload")[0] == 0
                taken.sendall(b"REJECTED\r\n\0\0\xff" * 100)
            mute.accept()[0].close()            # it comes back
            assert s.answer("hi") == "Hello world"
    assert s.process.returncode == 0


def test_a_bus_that_comes_later_is_found_and_one_that_was_killed_too():
    with Daemon(start=False) as d, Service(models=M, supervisor=RESTARTS, env=d.env) as s:
        assert s.answer("hi") == "Hello world"
        for _ in range(3):
            d.start()
            d.wait_named()
            with Client(d) as c:
                assert c.get(NODE + "m", MODEL, "State") == "ready"
                c.ask(NAME, PATH, NAME, "Reload")
            before = s.descriptors(s.process.pid)
            d.kill()
            assert s.answer("hi") == "Hello world"
            until("it has noticed", lambda b=before: s.descriptors(s.process.pid) < b)
        assert s.log().count(NAME + " is on the bus") == 3 and s.log().count("the bus is gone") == 3
        assert s.command("upgrade")[0] == 0
        d.start()
        d.wait_named()


def test_callers_wait_while_the_bus_goes_and_the_command_goes_on():
    with on_bus(", ".join([M, scripted("slow", script_file(TMP, "slow", load_ms=2000, play=["x"]), 'load = "manual";')])) as (d, s):
        with Client(d) as c:
            c.ask(NAME, PATH, NAME, "LoadModel", "s", "slow")
            until("it loads", lambda: worker(s, "slow")["state"] in ("loading", "ready"))
            d.kill()
        until("it is loaded", lambda: worker(s, "slow")["state"] == "ready")
        d.start()
        d.wait_named()


def test_a_frozen_bus_freezes_nothing_else():
    with on_bus() as (d, s):
        os.kill(d.process.pid, signal.SIGSTOP)
        try:
            assert s.answer("hi") == "Hello world" and s.command("reload")[0] == 0
            pid = worker(s, "m")["pid"]
            os.kill(pid, signal.SIGKILL)
            until("the worker is back", lambda: worker(s, "m")["state"] == "ready" and worker(s, "m")["pid"] != pid)
            assert s.command("upgrade")[0] == 0
            assert s.stop() == 0
        finally:
            os.kill(d.process.pid, signal.SIGCONT)


def test_a_name_that_is_refused_is_asked_for_again():
    with Daemon(start=False) as d:
        d.configure(own=False)
        d.start()
        with Service(models=M, supervisor=RESTARTS, env=d.env) as s:
            until("it is refused", lambda: "does not give us the name" in s.log())
            assert s.answer("hi") == "Hello world" and not d.named()
            d.configure(own=True)
            with Client(d) as c:
                c.call(BUS, "/org/freedesktop/DBus", BUS, "ReloadConfig")
            d.wait_named()
            assert s.log().count("does not give us the name") == 1


def test_a_second_service_has_the_name_when_the_first_one_leaves():
    with on_bus() as (d, first), Service(models=scripted("other", HELLO), env=d.env) as second:
        until("it knows", lambda: "another service has the name" in second.log())
        with Client(d) as c:
            assert [m[0] for m in c.manager("ListModels")[0]] == ["m"]
            first.stop()
            d.wait_named()
            assert [m[0] for m in c.manager("ListModels")[0]] == ["other"]


def test_a_reload_takes_it_off_the_bus_and_back():
    with on_bus() as (d, s):
        with Client(d) as c:
            s.configure(models=M, supervisor='bus = "none";')
            with contextlib.suppress(Failed):
                c.manager("Reload")
        d.wait_named(False)
        assert s.reload(models=M, supervisor="")[0] == 0
        d.wait_named()


def test_a_service_that_only_lends_workers_leaves_the_name_to_the_whole_one():
    worker_only = scripted("lent", HELLO, 'controllers = ( "unix:/nonexistent/controller.sock" );')
    with Daemon() as d, Service(models=worker_only, supervisor='parts = "workers";', env=d.env, ready=False) as lends:
        until("its worker is ready", lambda: (worker(lends, "lent") or {}).get("state") == "ready")
        with on_bus(bus=d) as (_, s), Client(d) as c:
            assert [m[0] for m in c.manager("ListModels")[0]] == ["m"]
            assert c.get(PATH, NAME, "State") == "serving" and s.process.poll() is None
        assert "bus" not in lends.log(), lends.log()


# ---- callers that mean no good

def test_calls_that_are_wrong_are_refused_and_change_nothing():
    with on_bus() as (d, s), Client(d) as c:
        for name in ("nobody", "", "m ", "M", "../m", "m\n", "\u2028", "%s%n%s", "x" * 200, "x" * (1 << 20)):
            for member in ("LoadModel", "UnloadModel"):
                assert refused(lambda m=member, n=name: c.manager(m, "s", n))[0] == error("NoSuchModel"), name
            if name:
                assert refused(lambda n=name: c.manager("Drain", "s", n))[0] == error("NoSuchModel"), name
        for member, args in (("LoadModel", ()), ("LoadModel", ("u", 1)), ("LoadModel", ("ss", "m", "m")), ("LoadModel", ("as", ["m"])), ("Reload", ("s", "m")),
                             ("Drain", ()), ("ListModels", ("v", ("s", "x")))):
            assert refused(lambda m=member, a=args: c.manager(m, *a))[0] == BUS + ".Error.InvalidArgs", (member, args)
        assert refused(lambda: c.manager("Explode"))[0] == BUS + ".Error.UnknownMethod"
        assert refused(lambda: c.call(NAME, NODE + "m", NAME, "Reload"))[0].startswith(BUS + ".Error.Unknown")
        assert refused(lambda: c.get(PATH, NAME, "Explode"))[0] == BUS + ".Error.UnknownProperty"
        c.send(1, 1, [(1, ("o", PATH)), (2, ("s", NAME)), (3, ("s", "Reload")), (6, ("s", NAME))], "")       # and wants no answer
        assert c.manager("ListModels")[0][0][1] == "ready" and s.process.poll() is None
        until("it was done", lambda: "was read again" in s.log())


def test_nobody_is_the_bus_but_the_bus():
    with on_bus() as (d, s), Client(d) as c:
        owner = c.call(BUS, "/org/freedesktop/DBus", BUS, "GetNameOwner", "s", NAME)[0]
        for interface, member in ((BUS, "NameLost"), (BUS, "NameAcquired")):
            c.send(4, 1, [(1, ("o", "/org/freedesktop/DBus")), (2, ("s", interface)), (3, ("s", member)), (6, ("s", owner))], "s", NAME)
        c.listen()
        os.kill(worker(s, "m")["pid"], signal.SIGKILL)
        c.signal("WorkerRestarted")


def test_thousands_of_calls_at_once_are_all_answered_and_the_service_serves():
    names = ", ".join([M, MANUAL, scripted("never", NEVER, 'load = "manual";')])
    with on_bus(names) as (d, s):
        before = s.descriptors(s.process.pid)
        stop = threading.Event()
        good = []

        def ask():
            while not stop.is_set():
                good.append(s.answer("hi") == "Hello world")
        asking = threading.Thread(target=ask)
        asking.start()
        try:
            with Client(d) as c:
                serials = [c.ask(NAME, PATH, NAME, *call) for _ in range(1000) for call in (
                    ("ListModels",), ("LoadModel", "s", "manual"), ("UnloadModel", "s", "manual"), ("LoadModel", "s", "nobody"))]
                ends = {}
                for serial in serials:
                    try:
                        c.answer(serial)
                        ends["ok"] = ends.get("ok", 0) + 1
                    except Failed as e:
                        ends[e.name] = ends.get(e.name, 0) + 1
                assert sum(ends.values()) == 4000 and ends["ok"] >= 1000 and ends[error("NoSuchModel")] == 1000, ends
                assert set(ends) <= {"ok", error("NoSuchModel"), error("Failed"), LIMITS}, ends
            with Client(d) as c, Client(d) as other:
                waits = [c.ask(NAME, PATH, NAME, "LoadModel", "s", "never") for _ in range(100)]
                assert all(refused(lambda w=w: c.answer(w))[0] == LIMITS for w in waits[64:])
                assert other.manager("LoadModel", "s", "manual") == ()      # one that asks too much hinders itself
                assert other.manager("UnloadModel", "s", "never") == ()
                assert all(refused(lambda w=w: c.answer(w))[0] == error("Failed") for w in waits[:64])
            clients = [Client(d) for _ in range(30)]
            for i in range(10000):              # and leave without their answers
                clients[i % 30].ask(NAME, PATH, NAME, *(("Reload",) if i % 2 else ("LoadModel", "s", "m")))
            for c in clients:
                c.s.close()
            with Client(d) as c:
                until("it has time again", lambda: c.get(PATH, NAME, "State") == "serving")
                assert c.manager("UnloadModel", "s", "manual") == ()
        finally:
            stop.set()
            asking.join(CEILING)
        assert good and all(good)
        until("all is as before", lambda: s.descriptors(s.process.pid) == before)


if __name__ == "__main__":
    run(globals())
