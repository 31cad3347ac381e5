"""The installed service under systemd: what an administrator does to it, and what happens to it, with clients that notice."""
import json
import socket

from packages import NEXT, PLAY, SETTINGS, Installed, model
from rig import run
from service import Knocker, streams_over, until

UNIT = "fastchat.service"


def knocked(what, m, act, crashes=0):
    """No connection is refused while `act` happens; prints the worst wait."""
    knocker = Knocker(m, (200, 503), crashes)
    until("it knocks", lambda: knocker.n > 100 or knocker.errors)
    act()
    m.wait_ready()
    n = knocker.n
    until("it knocks after it", lambda: knocker.n > n + 100 or knocker.errors)
    knocker.done()
    print(f"{what}: {knocker.n} connections, 0 refused, {knocker.cut} cut by the crash, worst wait {knocker.worst * 1000:.0f} ms")


def restarts(m):
    return int(m.show("NRestarts"))


def test_it_runs_after_a_boot_as_its_own_user_and_feeds_the_watchdog():
    with Installed() as m:
        assert m.state() == "active" and m.show("Result") == "success" and m.answer("x") == "short"
        pids = [m.main_pid()] + [c["pid"] for c in m.children()]
        assert set(m.run("stat", "-c", "%U", *[f"/proc/{pid}" for pid in pids]).split()) == {"_fastchat"}
        assert m.show("StatusText").startswith("serving, 1 of 1 workers ready")
        assert m.run("systemctl", "--failed", "--no-legend").strip() == ""
        assert m.show("NFileDescriptorStore") == "2"
        text = m.run("systemd-analyze", "verify", "--man=no", UNIT, "fastchat-worker@x.service", "fastchat.target")
        assert text == "", text


def test_a_reload_takes_effect_in_the_same_process_and_a_wrong_one_changes_nothing():
    with Installed() as m:
        pid, good = m.main_pid(), m.read(SETTINGS)
        m.settings(f"models = ( {model('m')}, {model('n')} );\n")
        m.run("systemctl", "reload", "fastchat")
        assert m.answer("x", model="n") == "short" and m.main_pid() == pid
        m.settings("nonsense")
        done = m.try_run("systemctl", "reload", "fastchat")
        assert done.returncode != 0 and m.state() == "active" and m.main_pid() == pid
        assert m.answer("x", model="n") == "short"
        m.said(SETTINGS)
        m.settings(good)
        m.run("systemctl", "reload", "fastchat")
        until("the other model is gone", lambda: m.chat("x", model="n")[0] == 404)
        assert m.main_pid() == pid


def test_a_restart_refuses_nobody():
    with Installed() as m:
        knocked("restart", m, lambda: m.run("systemctl", "restart", "fastchat"))


def test_a_supervisor_that_is_killed_comes_back_and_refuses_nobody():
    with Installed() as m:
        def act():
            old = m.main_pid()
            m.kill("KILL", old)
            until("systemd has started it anew", lambda: restarts(m) == 1 and m.main_pid() not in (0, old))
        knocked("kill -9", m, act, crashes=1)


def test_a_supervisor_that_hangs_is_ended_by_the_watchdog_and_refuses_nobody():
    with Installed() as m:
        m.drop_in("[Service]\nWatchdogSec=2\n")
        m.run("systemctl", "restart", "fastchat")
        m.wait_ready()

        def act():
            m.kill("STOP", m.main_pid())
            until("systemd has started it anew", lambda: restarts(m) == 1)
        knocked("watchdog", m, act, crashes=1)
        m.said("Watchdog timeout")


def test_an_upgrade_by_apt_refuses_nobody_and_loses_no_stream():
    with Installed() as m:
        pid = m.main_pid()
        knocker = Knocker(m)

        def act():
            m.install("fastchat=" + NEXT)
        streams_over(m, 100, act)
        knocker.done()
        print(f"upgrade: {knocker.n} connections, 0 refused, worst wait {knocker.worst * 1000:.0f} ms; 100 streams, 0 lost")
        m.wait_ready()
        assert m.main_pid() == pid and restarts(m) == 0 and NEXT in m.run("fastchat", "status")


def test_it_serves_on_without_a_journal_a_bus_and_polkit():
    with Installed() as m:
        units = ["systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald-audit.socket", "dbus.service",
                 "dbus.socket", "polkit.service"]
        m.run("systemctl", "stop", *units)
        for _ in range(20):
            assert m.answer("x") == "short"
        assert m.cli("status").returncode == 0
        m.settings(m.read(SETTINGS) + "# changed\n")
        assert m.command("reload")[0] == 0
        child = m.child("worker")
        m.kill("KILL", child["pid"])
        until("the worker is back", lambda: (m.child("worker") or child)["pid"] not in (0, child["pid"]) and m.child("worker")["state"] == "ready")
        assert m.answer("x") == "short"
        began = m.run("date", "+%s").strip()
        m.run("systemctl", "start", "systemd-journald.socket", "systemd-journald.service", "dbus.socket", "dbus.service")
        assert m.answer("x") == "short" and m.state() == "active" and restarts(m) == 0
        until("it logs again", lambda: m.answer("x") and m.journal("-u", "fastchat", "FASTCHAT_EVENT=request", "--since", "@" + began, "-o", "cat"))


def test_a_machine_without_a_bus_restarts_it_as_well():
    with Installed() as m:
        m.run("systemctl", "mask", "--now", "dbus.service", "dbus.socket")
        m.run("systemctl", "restart", "fastchat")
        m.wait_ready()
        assert m.answer("x") == "short"


def test_a_full_disk_below_its_state_stops_nothing():
    with Installed() as m:
        m.run("systemctl", "stop", "fastchat")
        m.sh("mount -t tmpfs -o size=64k none /var/lib/fastchat; chown _fastchat: /var/lib/fastchat;"
             "dd if=/dev/zero of=/var/lib/fastchat/full bs=1k 2>/dev/null || true")
        m.run("systemctl", "start", "fastchat")
        m.wait_ready()
        assert m.answer("x") == "short"
        m.run("systemctl", "reload", "fastchat")
        m.sh("rm /var/lib/fastchat/full")
        assert m.answer("x") == "short" and restarts(m) == 0


def test_a_full_disk_below_the_journal_stops_nothing():
    with Installed() as m:
        m.sh("mount -t tmpfs -o size=64k none /var/log; dd if=/dev/zero of=/var/log/full bs=1k 2>/dev/null || true")
        for _ in range(20):
            assert m.answer("x") == "short"
        m.run("systemctl", "reload", "fastchat")
        assert m.answer("x") == "short" and restarts(m) == 0


def test_descriptors_that_run_out_cost_only_the_clients_over_the_limit():
    with Installed() as m:
        m.drop_in("[Service]\nLimitNOFILE=64\n")
        m.run("systemctl", "restart", "fastchat")
        m.wait_ready()
        held = [m.dial() for _ in range(100)]
        until("somebody is turned away", lambda: any(turned_away(c) for c in held))
        for c in held:
            c.close()
        until("it answers again", lambda: m.chat("x")[0] == 200)
        assert m.state() == "active" and restarts(m) == 0 and m.answer("x") == "short"


def turned_away(c):
    """Has the other side answered or closed?"""
    c.setblocking(False)
    try:
        return c.recv(100) is not None
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_an_address_in_use_is_named_and_ends_in_no_storm():
    with Installed() as m:
        m.run("systemctl", "stop", "fastchat")
        with m.network():
            taken = socket.create_server(("127.0.0.1", m.port))
        with taken:
            assert m.try_run("systemctl", "start", "fastchat").returncode != 0
            m.said(f"127.0.0.1:{m.port} is in use")
            until("it is left alone", lambda: m.state() == "failed")
            assert restarts(m) <= 10
        m.run("systemctl", "reset-failed", "fastchat")
        m.run("systemctl", "start", "fastchat")
        m.wait_ready()


def test_a_stop_lets_running_answers_end():
    with Installed() as m:
        streams_over(m, 20, lambda: m.run("systemctl", "stop", "fastchat"))
        assert m.state() == "inactive" and m.show("Result") == "success"


def test_the_journal_has_each_event_with_its_fields_its_id_and_words_of_the_catalog():
    with Installed() as m:
        child = m.child("worker")
        m.kill("KILL", child["pid"])
        until("the worker is back", lambda: m.child("worker")["pid"] not in (0, child["pid"]) and m.child("worker")["state"] == "ready")
        m.answer("x")
        m.said("starts again")
        rows = [json.loads(line) for line in m.journal("-u", "fastchat", "FASTCHAT_EVENT=restart", "-o", "json").splitlines()]
        assert rows[-1]["FASTCHAT_CHILD"] == "worker m/0" and rows[-1]["FASTCHAT_MODEL"] == "m" and rows[-1]["MESSAGE_ID"], rows
        words = m.journal("-u", "fastchat", "-x", "MESSAGE_ID=" + rows[-1]["MESSAGE_ID"])
        assert "Subject: worker m/0 will be started again" in words and "Defined-By: fastchat" in words, words
        until("the request's line", lambda: m.journal("-u", "fastchat", "FASTCHAT_EVENT=request", "FASTCHAT_OUTCOME=ok", "-o", "cat"))
        assert PLAY not in m.journal("-u", "fastchat", "FASTCHAT_EVENT=request"), "a request's line says too much"


run(globals())
