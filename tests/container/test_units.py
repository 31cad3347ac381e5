"""The units of units/ at work, with the programs of this build: what the service can do in its cage, and what it can not."""
import contextlib
import functools
import json
import os
import re
import subprocess

from cage import cage
from rig import BUILD, WORK, Container, read, run
from hub import Hub
from service import SOURCE, events, real_model, until

PLAY = {"context_length": 4096, "play": ["Hel", "lo"]}
SLOW = {"context_length": 4096, "play": [{"repeat": 40, "play": [{"wait_ms": 100}, "b"]}]}
MODEL = 'models: ( { name = "m"; device = "scripted"; path = "/etc/fastchat/m.json"; } );'
GROUP = "/sys/fs/cgroup/system.slice/fastchat.service"


@functools.cache
def installed():
    """Layers: the build below /usr/local, as `meson install` does it, and what else a machine needs for it."""
    tree, layer = WORK + "/built", WORK + "/prepared"
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", tree], check=True, stdout=subprocess.DEVNULL)
    with Container(layers=[tree]) as c:
        c.sh("apt-get -qq update; apt-get -qqy install --no-install-recommends dbus libcjson1 libconfig9 libcurl4 libpcre2-8-0 libssl3;"
             "systemd-sysusers fastchat.conf; journalctl --update-catalog")
        c.stop()
        os.rename(c.dir + "/upper", layer)
    return [layer, tree]


class Machine(Container):
    """With the service, which plays a scripted model."""

    def __init__(self, **kw):
        super().__init__(layers=installed(), **kw)

    def boot(self):
        super().boot()
        self.write("/etc/fastchat/m.json", json.dumps(PLAY))
        self.write("/etc/fastchat/fastchat.conf", MODEL)
        self.run("systemctl", "start", "fastchat")
        until("the model is ready", self.serves)
        return self

    def command_line(self, words):
        return [w.replace("PATH=", "PATH=/usr/local/sbin:/usr/local/bin:") if w.startswith("PATH=") else w for w in super().command_line(words)]

    def serves(self):
        return self.chat("hi")[0] == 200

    def caged(self, script):
        """A shell where the service is: its user, its mounts, its groups."""
        return self.try_run("nsenter", "-t", self.show("MainPID"), "--mount", "--root", "sh", "-c",
                            f"setpriv --reuid=_fastchat --regid=_fastchat --clear-groups sh -c '{script}'")


def test_the_cage_is_closed_and_the_service_serves_in_it():
    with Machine() as c:
        assert c.answer("hi") == "Hello"
        for pid in [int(c.show("MainPID"))] + [child["pid"] for child in c.children()]:
            state = c.read(f"/proc/{pid}/status")
            for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
                assert line in state, (pid, line)
        for path in ("/etc/x", "/usr/x", "/var/lib/x", "/var/lib/fastchat/../x", "/home/x", "/root/x", "/run/x", "/dev/x"):
            assert c.caged(f"touch {path}").returncode != 0, path
        for path in ("/var/lib/fastchat/models/x", "/run/fastchat/x", "/tmp/x"):
            assert c.caged(f"touch {path} && rm {path}").returncode == 0, path
        assert "kmsg" not in c.caged("ls /dev").stdout


def test_the_service_makes_groups_below_its_own_and_nowhere_else():
    with Machine() as c:
        for _ in range(2):
            assert c.caged(f"mkdir {GROUP}/leaf && rmdir {GROUP}/leaf").returncode == 0
            for path in ("/sys/fs/cgroup/x", "/sys/fs/cgroup/system.slice/x", "/sys/fs/cgroup/init.scope/x"):
                assert "Read-only" in c.caged(f"mkdir {path}").stderr, path
            c.run("systemctl", "restart", "fastchat")
        # Where an administrator has moved it, it serves all the same.
        c.drop_in("[Service]\nSlice=models.slice\n")
        c.run("systemctl", "restart", "fastchat")
        assert c.serves() and c.show("ControlGroup") == "/models.slice/fastchat.service"
        c.drop_in("[Service]\nSlice=models.slice\nReadWritePaths=/sys/fs/cgroup/models.slice/fastchat.service\n")
        c.run("systemctl", "restart", "fastchat")
        assert c.caged("mkdir /sys/fs/cgroup/models.slice/fastchat.service/leaf").returncode == 0


def test_a_real_model_loads_pinned_in_a_group_of_its_own():
    with Machine(binds={"/srv/smollm2.gguf": real_model()}) as c:
        c.write("/etc/fastchat/conf.d/1.conf",
                'models: ( { name = "real"; path = "/srv/smollm2.gguf"; load = "on-demand"; keep_alive = -1; cpus = "0"; nice = 5; numa_node = 0; } );')
        c.run("systemctl", "reload", "fastchat")

        def is_pinned():
            worker = c.child("worker", "real")
            if worker["state"] != "ready":
                return False
            pid = worker["pid"]
            assert "\nCpus_allowed_list:\t0\n" in c.read(f"/proc/{pid}/status")
            assert c.read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()[16] == "5"
            assert "/system.slice/fastchat.service/worker-real-0" in c.read(f"/proc/{pid}/cgroup")
            return True
        assert c.child("worker", "real")["state"] == "stopped"
        assert len(c.answer("Say hi", model="real", max_tokens=4))
        assert is_pinned()
        assert c.cli("upgrade").returncode == 0
        until("it runs under the new program", is_pinned)
        c.sh(f"kill -KILL {c.child('worker', 'real')['pid']}")
        assert len(c.answer("Say hi", model="real", max_tokens=4))
        until("it runs again", is_pinned)


def test_a_model_is_pulled_and_loaded_in_the_cage():
    with open(real_model(), "rb") as f:
        weights = f.read()
    with Machine() as c:
        c.write("/etc/fastchat/conf.d/1.conf", 'supervisor: { model_folders = ( "/var/lib/fastchat/models" ); };')
        with contextlib.ExitStack() as stack:
            with c.network():
                hub = stack.enter_context(Hub())
            hub.add("org/tiny-GGUF", {"tiny.gguf": weights})
            pulled = c.try_run("systemd-run", "-q", "--wait", "--pipe", "--collect", *cage(), f"-EHF_ENDPOINT={hub.endpoint}",
                               "fastchat", "pull", "org/tiny-GGUF")
        assert (pulled.returncode, pulled.stdout) == (0, "/var/lib/fastchat/models/tiny.gguf\n"), pulled
        assert c.sh("stat -c %U /var/lib/fastchat/models/tiny.gguf") == "_fastchat\n"
        c.run("systemctl", "reload", "fastchat")
        assert len(c.answer("Say hi", model="tiny", max_tokens=4))


def test_a_unix_socket_of_the_api_may_be_another_group_s():
    with Machine() as c:
        c.write("/etc/fastchat/conf.d/1.conf", 'api: { listen = ( { address = "unix:/run/fastchat/web.sock"; mode = "0660"; group = "www-data"; } ); };')
        assert c.try_run("systemctl", "reload", "fastchat").returncode != 0 and c.serves()
        c.drop_in("[Service]\nSupplementaryGroups=www-data\n")
        c.run("systemctl", "restart", "fastchat")
        assert c.sh("stat -c '%U %G %a' /run/fastchat/web.sock") == "_fastchat www-data 660\n"


def test_the_journal_explains_the_lines_of_the_service():
    with Machine() as c:
        number = dict(re.findall(r'^EVENT\("([a-z-]+)", "([0-9a-f]{32})"\)$', read(os.path.join(SOURCE, "base", "events.def")), re.M))
        c.run("fastchat", "reload")
        c.sh(f"kill -KILL {c.child('worker')['pid']}")
        for kind in ("service-ready", "start", "ready", "reload", "exit", "restart"):
            until(f"a line of the kind {kind}", lambda k=kind: c.try_run("journalctl", "-q", "MESSAGE_ID=" + number[k], "FASTCHAT_EVENT=" + k).stdout)
        said = c.journal("-x", "-o", "short", "MESSAGE_ID=" + number["exit"])
        assert "Subject: worker m/0 has ended" in said and "Defined-By: fastchat" in said and 'FASTCHAT_CHILD="worker m/0"' in said, said


def test_a_change_that_takes_longer_than_the_unit_s_limits_is_waited_for():
    with Machine() as c:
        c.drop_in("[Service]\nTimeoutStartSec=2\nTimeoutStopSec=1\n")
        c.run("systemctl", "restart", "fastchat")
        c.write("/etc/fastchat/slow.json", json.dumps({**SLOW, "load_ms": 5000}))
        c.write("/etc/fastchat/conf.d/1.conf", 'models: ( { name = "slow"; device = "scripted"; path = "/etc/fastchat/slow.json"; } );')
        c.run("systemctl", "reload", "fastchat")
        with c.stream("hi", model="slow") as answer:
            got = events(answer)
            next(got)
            c.run("systemctl", "stop", "fastchat")
            assert list(got)[-1] == "[DONE]"
        assert c.show("Result") == "success"


def test_a_configuration_error_is_no_reason_to_try_again():
    with Machine() as c:
        c.write("/etc/fastchat/conf.d/1.conf", "api: { idle_s = 0; };")
        reload = c.try_run("systemctl", "reload", "fastchat")
        assert reload.returncode != 0 and c.serves()
        assert "api.idle_s: 0 is below 1" in c.journal("-u", "fastchat")
        assert c.try_run("systemctl", "restart", "fastchat").returncode != 0
        assert (c.show("ActiveState"), c.show("NRestarts"), c.show("ExecMainStatus")) == ("failed", "0", "78")


def test_workers_for_another_host_are_a_unit_of_their_own():
    with Machine() as c:
        c.write("/etc/fastchat/conf.d/1.conf", 'controller: { listen = "127.0.0.1:21001"; };')
        c.run("systemctl", "reload", "fastchat")
        c.write("/usr/local/etc/fastchat/workers/gpu-0.conf",
                'supervisor: { parts = "workers"; };\nmodels: ( { name = "far"; device = "scripted"; path = "/etc/fastchat/m.json";'
                ' controllers = ( "localhost:21001" ); listen = "127.0.0.1:21002"; } );')
        unit = "fastchat-worker@gpu-0.service"
        c.run("systemctl", "start", unit)
        until("its model is known", lambda: c.chat("hi", model="far")[0] == 200)
        c.run("systemctl", "reload", unit)
        assert [child["role"] for child in json.loads(c.run("fastchat", "status", "--json", "--runtime-dir", "/run/fastchat-worker/gpu-0"))["children"]] == ["worker"]
        group = f"/sys/fs/cgroup/system.slice/{unit}"
        made = c.try_run("nsenter", "-t", c.show("MainPID", unit), "--mount", "--root", "setpriv", "--reuid=_fastchat", "--regid=_fastchat", "--clear-groups",
                         "mkdir", group + "/leaf")
        assert made.returncode == 0, made
        c.run("systemctl", "restart", unit)
        until("its model is known again", lambda: c.chat("hi", model="far")[0] == 200)


def test_the_drop_in_for_gpus_does_no_harm_where_there_is_none():
    with Machine() as c:
        c.sh("mkdir -p /etc/systemd/system/fastchat.service.d;"
             "cp /usr/local/share/doc/fastchat/examples/50-cuda.conf /etc/systemd/system/fastchat.service.d; systemctl daemon-reload; systemctl restart fastchat")
        until("the model is ready", c.serves)
        assert (c.show("PrivateDevices"), c.show("DevicePolicy")) == ("no", "closed") and "char-nvidia* rw" in c.show("DeviceAllow")


def test_the_target_stops_and_starts_all_that_is_enabled():
    with Machine() as c:
        c.run("systemctl", "enable", "fastchat")
        c.run("systemctl", "stop", "fastchat.target")
        until("the service has stopped", lambda: c.show("ActiveState") == "inactive")
        c.run("systemctl", "start", "fastchat.target")
        until("the service serves", lambda: c.show("ActiveState") == "active")
        until("the model is ready", c.serves)


if __name__ == "__main__":
    run(globals())
