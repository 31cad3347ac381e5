"""What the command line says of a service that systemd runs: its log, its health, its files, its end."""
import json
import re

from rig import run
from service import until
from test_units import Machine


def ask(c, *words):
    return c.try_run("fastchat", *words)


def test_logs_are_those_of_the_unit_a_model_or_a_process():
    with Machine() as c:
        until("the journal has it", lambda: "supervisor: the service is ready" in ask(c, "logs").stdout)
        got = ask(c, "logs", "m")
        assert got.returncode == 0 and re.search(r"^\w{3} \d\d \d\d:\d\d:\d\d worker m/0: ", got.stdout, re.M), got
        assert "supervisor: worker m/0 is ready" in got.stdout and "supervisor: the service is ready" not in got.stdout, got.stdout
        assert "\x1b" not in got.stdout
        got = ask(c, "logs", "m/0", "--json", "-n", "2").stdout.splitlines()
        assert len(got) == 2 and all("worker m/0" in (json.loads(line).get(k) for k in ("FASTCHAT_ROLE", "FASTCHAT_CHILD")) for line in got), got
        lines = ask(c, "logs", "controller").stdout.splitlines()
        assert lines and all("controller" in line for line in lines), lines
        assert ask(c, "logs", "-n", "1").stdout.count("\n") == 1
        assert "Started" in ask(c, "logs").stdout            # systemd's own lines about the unit
        got = ask(c, "logs", "nobody")
        assert got.returncode == 0 and "no lines of fastchat.service about nobody" in got.stderr, got
        c.run("systemd-run", "--unit=follow", "--property=StandardOutput=file:/run/follow", "/usr/local/bin/fastchat", "logs", "--follow", "-n0")

        def is_followed():
            c.run("fastchat", "reload")
            return "the configuration is in force" in c.read("/run/follow")
        until("a line comes while it is said", is_followed)
        c.run("systemctl", "stop", "follow")
        got = c.try_run("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "fastchat", "logs")
        assert got.returncode == 1 and "that you may read: use sudo, or join the group systemd-journal" in got.stderr, got
        c.run("systemctl", "stop", "fastchat")
        assert "supervisor: the service has stopped" in ask(c, "logs").stdout


def test_doctor_knows_the_unit():
    with Machine() as c:
        got = ask(c, "doctor")
        assert got.returncode == 0 and re.search(r"^warn  unit +fastchat.service is active \(running\), and disabled: .*'systemctl enable fastchat'$", got.stdout, re.M), got
        c.run("systemctl", "enable", "--quiet", "fastchat")
        got = ask(c, "doctor")
        for line in (r"ok    unit +fastchat.service is active \(running\), enabled", r"ok    service +process \d+ answers in /run/fastchat, as user _fastchat",
                     r"ok    models +m: /etc/fastchat/m.json \(0 MB\), readable for _fastchat", r"ok    open files +.*", r"ok    disk +\d+ MB are free in /var/lib/fastchat"):
            assert re.search(f"^{line}$", got.stdout, re.M), (line, got.stdout)
        c.run("systemctl", "stop", "fastchat")
        got = ask(c, "doctor")
        assert got.returncode == 1 and "fail  unit           fastchat.service is not started; 'systemctl start fastchat'" in got.stdout, got
        assert re.search(r"^ok    models +m: .*readable for _fastchat$", got.stdout, re.M), got
        c.run("systemctl", "mask", "--quiet", "fastchat")
        assert "fail  unit           fastchat.service is masked" in ask(c, "doctor").stdout


def test_a_model_that_the_service_may_not_read_names_the_folder():
    with Machine() as c:
        c.sh("mkdir -p /srv/ann/models /home/ann; cp /etc/fastchat/m.json /srv/ann/models/x.json; cp /etc/fastchat/m.json /home/ann/; chmod 700 /srv/ann")
        c.write("/etc/fastchat/conf.d/1.conf", 'models: ( { name = "x"; device = "scripted"; path = "/srv/ann/models/x.json"; } );')
        want = "user _fastchat cannot enter the folder /srv/ann (mode 0700, root:root): move the file, or 'setfacl -m u:_fastchat:x /srv/ann'"
        for got in (ask(c, "reload"), ask(c, "config", "check")):
            assert got.returncode == 1 and want in got.stderr, got
        got = ask(c, "doctor")
        assert got.returncode == 1 and "fail  configuration" in got.stdout and want in got.stdout, got
        c.run("systemctl", "stop", "fastchat")          # root reads it, and doctor looks as the service's user does
        got = ask(c, "doctor")
        assert "ok    configuration" in got.stdout and f"fail  models         x: /srv/ann/models/x.json: {want}" in got.stdout, got
        c.sh("chmod 711 /srv/ann; systemctl start fastchat")
        until("it is served", lambda: c.chat("hi", model="x")[0] == 200)
        c.write("/etc/fastchat/conf.d/1.conf", 'models: ( { name = "x"; device = "scripted"; path = "/home/ann/m.json"; } );')
        got = ask(c, "reload")
        assert got.returncode == 1 and "cannot enter the folder /home " in got.stderr and "ProtectHome=" in got.stderr, got


def test_drain_ends_the_service_and_systemd_leaves_it_so():
    with Machine() as c:
        got = ask(c, "drain")
        assert got.returncode == 0 and got.stdout == "the service has stopped; all that ran has ended\n", got
        until("systemd has seen it", lambda: c.show("ActiveState") == "inactive")
        assert c.show("Result") == "success" and c.show("NRestarts") == "0"


if __name__ == "__main__":
    run(globals())
