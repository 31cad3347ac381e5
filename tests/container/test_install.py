"""What apt does with the packages on a machine that has nothing but Debian's minimum: each step leaves what an administrator expects."""
import os
import shutil

from packages import FIRST, NEXT, PLACE, SETTINGS, Installed, Machine, readme
from rig import run
from service import SOURCE, until

CONF = "/etc/fastchat/fastchat.conf"


def files(m):
    """All files and accounts, but not what apt, the journal and systemd keep about themselves."""
    return set(m.sh(
        "find / -xdev \\( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/tmp -o -path /var/log -o -path /var/cache -o "
        "-path /var/lib/apt -o -path /var/lib/dpkg -o -path /srv -o -path /etc/apt \\) -prune -o -print; "
        "getent passwd | sed 's/^/user /; s/:.*//'; getent group | sed 's/^/group /; s/:.*//'").splitlines())


def answers(m, model="smollm2"):
    text = m.answer("What is the capital of France? Answer in one sentence.", model=model, temperature=0, max_tokens=64)
    assert "Paris" in text, text
    return True


def models(m):
    return [x["id"] for x in m.request("GET", "/v1/models")[2]["data"]]


def test_on_a_fresh_debian_the_lines_of_the_readme_make_an_answer():
    with Machine("first") as m:
        m.apt("update")
        m.install("curl")
        lines = [line for line in readme("apt install") if not line.startswith("packaging/")][:3]
        assert [line.split()[0] for line in lines] == ["sudo", "sudo", "curl"], lines
        m.sh('sudo() { "$@"; }\n' + "\n".join(lines[:2]))
        until("the model is loaded", lambda: "loaded" in str(m.request("GET", "/v1/models")[2]))
        text = m.sh(lines[2])
        assert '"role":"assistant"' in text.replace(" ", "") and '"finish_reason"' in text, text
        assert answers(m)
        assert m.version() == "installed " + FIRST and m.run("systemctl", "is-enabled", "fastchat").strip() == "enabled"
        assert m.run("systemctl", "--failed", "--no-legend").strip() == ""


def test_without_a_model_it_runs_and_says_so_and_a_model_package_comes_and_goes_while_it_runs():
    with Machine("first") as m:
        m.use_repository()
        m.install("fastchat")
        assert m.state() == "active" and models(m) == []
        pid, text = m.main_pid(), m.run("fastchat", "status")
        assert "no model" in text and "fastchat-model-smollm2" in text, text
        status, _, body = m.chat("x", model="smollm2")
        assert status == 404, (status, body)
        m.install("fastchat-model-smollm2")
        until("the model is loaded", lambda: m.chat("x", model="smollm2", max_tokens=1)[0] == 200)
        assert answers(m) and models(m) == ["smollm2"] and "no model" not in m.run("fastchat", "status")
        m.apt("remove", "fastchat-model-smollm2")
        until("the model is gone", lambda: models(m) == [])
        assert m.main_pid() == pid and m.state() == "active" and m.show("NRestarts") == "0"


def test_remove_stops_it_and_keeps_settings_and_purge_leaves_only_the_system_user():
    with Machine() as m:
        m.use_repository()
        m.install("fastchat=" + FIRST)      # brings its libraries
        m.apt("purge", "fastchat")
        before = files(m)
        assert "user _fastchat" in before and "group _fastchat" in before
        m.install("fastchat=" + FIRST)
        m.settings('api = { listen = ( "127.0.0.1:8000" ); };\n')
        m.apt("remove", "fastchat")
        assert m.state() != "active" and m.try_run("test", "-e", CONF).returncode == 0
        left = files(m) - before
        assert all(x.startswith(("/etc/", "/var/lib/fastchat", "/var/lib/systemd/")) for x in left), left
        m.install("fastchat=" + FIRST)
        assert m.state() == "active" and m.read(SETTINGS), "an install after a remove does not go on as before"
        m.sh("touch /var/lib/fastchat/something")
        m.apt("purge", "fastchat")           # while it runs
        assert m.state() != "active"
        # What somebody else put into a folder of the package is his.
        m.sh(f"rm -f {SETTINGS}; rmdir --ignore-fail-on-non-empty -p /etc/fastchat/conf.d 2>/dev/null || true")
        assert files(m) == before, files(m) ^ before
        assert m.try_run("systemctl", "cat", "fastchat.service").returncode != 0
        assert m.run("systemctl", "--failed", "--no-legend").strip() == ""


def test_models_that_were_fetched_outlive_a_purge():
    with Machine() as m:
        m.use_repository()
        m.install("fastchat=" + FIRST)
        m.sh("echo dear > /var/lib/fastchat/models/dear.gguf; echo x > /var/lib/fastchat/other")
        m.apt("purge", "fastchat")
        assert m.sh("find /var/lib/fastchat -type f").split() == ["/var/lib/fastchat/models/dear.gguf"]


def test_a_reinstall_changes_nothing_that_runs():
    with Installed() as m:
        pid = m.main_pid()
        m.apt("install", "--reinstall", "fastchat=" + FIRST)
        m.wait_ready()
        assert m.main_pid() == pid and m.show("NRestarts") == "0" and m.answer("x") == "short"


def test_an_upgrade_and_a_downgrade_keep_a_changed_conffile():
    with Installed() as m:
        pid = m.main_pid()
        m.sh(f"echo '# ours' >> {CONF}")
        mine = m.read(CONF)
        for version in (NEXT, FIRST):
            m.install("fastchat=" + version)
            m.wait_ready()
            assert m.version() == "installed " + version and m.read(CONF) == mine
            assert version in m.run("fastchat", "status"), "the programs that run are the old ones"
            assert m.main_pid() == pid and m.answer("x") == "short"


def test_with_a_wrong_configuration_the_package_installs_and_the_service_says_what_is_wrong():
    with Machine() as m:
        m.use_repository()
        m.install("fastchat=" + FIRST)
        m.apt("remove", "fastchat")
        m.settings("api = { lisen = 1; };\n")
        said = m.try_run("apt-get", "-q", "-y", "install", "--no-install-recommends", "fastchat=" + FIRST)
        assert said.returncode == 0 and "lisen" in said.stdout + said.stderr, said
        assert m.version() == "installed " + FIRST
        assert (m.state(), m.show("ExecMainStatus"), m.show("NRestarts")) == ("failed", "78", "0")
        m.said("lisen")
        # An upgrade tries again; with the mistake gone that is all it takes.
        m.sh(f"rm {SETTINGS}")
        m.install("fastchat=" + NEXT)
        assert m.state() == "active" and m.version() == "installed " + NEXT


def test_a_configuration_that_breaks_before_an_upgrade_leaves_what_runs():
    with Installed() as m:
        pid, good = m.main_pid(), m.read(SETTINGS)
        m.settings("nonsense")
        said = m.try_run("apt-get", "-q", "-y", "install", "fastchat=" + NEXT)
        assert said.returncode == 0 and SETTINGS in said.stdout + said.stderr, said
        assert m.state() == "active" and m.main_pid() == pid and m.answer("x") == "short"
        m.settings(good)
        assert m.cli("upgrade").returncode == 0
        m.wait_ready()
        assert m.main_pid() == pid and NEXT in m.run("fastchat", "status") and m.answer("x") == "short"


def test_a_new_version_that_can_not_run_leaves_what_runs():
    with Installed() as m:
        pid = m.main_pid()
        m.sh(f"""cd /root; dpkg-deb -R {PLACE}/pool/fastchat/fastchat_{NEXT}_*.deb broken
            sed -i 's/^Version: .*/&.0/' broken/DEBIAN/control
            printf '#!/bin/sh\\necho too new for this machine >&2\\nexit 3\\n' > broken/usr/sbin/fastchatd
            dpkg-deb -b broken broken.deb""")
        m.install("/root/broken.deb")
        assert m.version() == f"installed {NEXT}.0" and m.state() == "active" and m.main_pid() == pid and m.answer("x") == "short"
        m.install("fastchat=" + NEXT)
        m.wait_ready()
        assert m.main_pid() == pid and m.answer("x") == "short" and NEXT in m.run("fastchat", "status")


def test_what_is_stopped_or_disabled_stays_so_over_an_upgrade():
    with Installed() as m:
        m.run("systemctl", "stop", "fastchat")
        m.install("fastchat=" + NEXT)
        assert m.state() == "inactive" and m.run("systemctl", "is-enabled", "fastchat").strip() == "enabled"
        m.run("systemctl", "disable", "fastchat")
        m.install("fastchat=" + FIRST)
        assert m.state() == "inactive" and m.try_run("systemctl", "is-enabled", "fastchat").stdout.strip() == "disabled"
        m.run("systemctl", "start", "fastchat")
        m.install("fastchat=" + NEXT)
        assert m.state() == "active" and m.try_run("systemctl", "is-enabled", "fastchat").stdout.strip() == "disabled"
        m.run("systemctl", "mask", "--now", "fastchat")
        m.apt("install", "--reinstall", "fastchat=" + NEXT)
        assert m.state() == "inactive" and m.try_run("systemctl", "is-enabled", "fastchat").stdout.strip() == "masked"


def test_it_installs_where_systemd_does_not_run():
    with Machine() as m:
        m.use_repository()
        m.sh("mount -t tmpfs none /run/systemd")      # as in the making of an image
        m.install("fastchat=" + FIRST)
        m.sh("umount /run/systemd")
        assert m.version() == "installed " + FIRST and m.state() == "inactive"
        assert m.run("systemctl", "is-enabled", "fastchat").strip() == "enabled"


def test_the_package_s_own_test_passes_where_autopkgtest_runs_it():
    with Machine() as m:
        m.use_repository()
        m.install("autopkgtest", "dpkg-dev")
        shutil.copytree(os.path.join(SOURCE, "packaging", "deb"), m.path("/root/tree/debian"))
        done = m.try_run("autopkgtest", "-B", "/root/tree/", "--", "null")
        assert done.returncode == 0 and "smoke" in done.stdout + done.stderr, done.stdout[-4000:] + done.stderr[-4000:]


def test_the_repository_is_refused_with_another_key():
    with Machine() as m:
        m.sh(f"sed '/^Signed-By:/,$d' {PLACE}/fastchat.sources > /etc/apt/sources.list.d/fastchat.sources")
        said = m.try_run("apt-get", "update")
        assert said.returncode != 0 and "not signed" in said.stdout + said.stderr or "NO_PUBKEY" in said.stdout + said.stderr, said


run(globals())
