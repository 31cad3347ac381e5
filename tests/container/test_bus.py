"""org.fastchat.Manager1 on a true system bus: what root, somebody, and somebody with polkit's leave may do."""
from packages import Installed, model
from rig import run
from service import until

NAME, PATH = "org.fastchat.Manager1", "/org/fastchat/Manager1"
RULE = """polkit.addRule(function(action, subject) {
  if (action.id == "org.fastchat.%s" && subject.user == "nobody")
    return polkit.Result.YES;
});
"""


ONE_MODEL = """polkit.addRule(function(action, subject) {
  if (action.id == "org.fastchat.manage-models" && action.lookup("model") == "m" && subject.user == "nobody")
    return polkit.Result.YES;
});
"""


def call(m, *words, user="root"):
    """busctl's exit code and what it printed."""
    done = m.try_run("runuser", "-u", user, "--", "busctl", "--timeout=600", "call", NAME, PATH, NAME, *words)
    return done.returncode, done.stdout + done.stderr


def on_the_bus(m):
    until("it is on the bus", lambda: m.try_run("busctl", "status", NAME).returncode == 0)


def test_root_may_do_everything_and_everybody_may_read():
    with Installed() as m:
        on_the_bus(m)
        for user in ("root", "nobody"):
            code, text = call(m, "ListModels", user=user)
            assert code == 0 and '"m" "ready"' in text.replace('"loaded"', '"ready"'), text
            text = m.run("runuser", "-u", user, "--", "busctl", "introspect", NAME, PATH)
            assert ".ListModels" in text and ".ModelStateChanged" in text, text
            assert m.run("runuser", "-u", user, "--", "busctl", "get-property", NAME, PATH + "/model/m", NAME + ".Model", "Restarts").strip().endswith(" 0")
        assert call(m, "UnloadModel", "s", "m")[0] == 0
        until("it is unloaded", lambda: m.child("worker")["state"] == "stopped")
        assert call(m, "LoadModel", "s", "m")[0] == 0 and m.answer("x") == "short"
        m.settings(f"models = ( {model('m')}, {model('n')} );\n")
        assert call(m, "Reload")[0] == 0 and m.answer("x", model="n") == "short"
        m.settings("nonsense")
        code, text = call(m, "Reload")
        assert code != 0 and "test.conf" in text, text


def test_somebody_needs_the_leave_of_polkit():
    with Installed() as m:
        on_the_bus(m)
        for words in (["Reload"], ["UnloadModel", "s", "m"], ["LoadModel", "s", "m"], ["Upgrade"], ["Drain", "s", ""]):
            code, text = call(m, *words, user="nobody")
            assert code != 0, (words, text)
        m.write("/etc/polkit-1/rules.d/10-test.rules", RULE % "reload")
        until("the rule is in force", lambda: call(m, "Reload", user="nobody")[0] == 0)
        assert call(m, "UnloadModel", "s", "m", user="nobody")[0] != 0
        assert m.answer("x") == "short" and m.state() == "active"


def test_a_rule_may_be_for_one_model():
    with Installed() as m:
        on_the_bus(m)
        m.settings(f"models = ( {model('m')}, {model('n')} );\n")
        assert call(m, "Reload")[0] == 0
        m.write("/etc/polkit-1/rules.d/10-test.rules", ONE_MODEL)
        until("the rule is in force", lambda: call(m, "UnloadModel", "s", "m", user="nobody")[0] == 0)
        assert m.child("worker", "m")["state"] == "stopped"
        assert call(m, "LoadModel", "s", "m", user="nobody")[0] == 0 and m.answer("x") == "short"
        assert call(m, "UnloadModel", "s", "n", user="nobody")[0] != 0 and m.child("worker", "n")["state"] == "ready"
        nobody = m.run("id", "-u", "nobody").strip()
        m.said(f"user {nobody} asks over the bus: load m")


def test_without_polkit_only_root_may():
    with Installed() as m:
        on_the_bus(m)
        m.run("systemctl", "mask", "--now", "polkit.service")
        assert call(m, "Reload", user="nobody")[0] != 0
        assert call(m, "Reload")[0] == 0 and call(m, "ListModels", user="nobody")[0] == 0


def test_a_bus_that_is_started_anew_has_it_again():
    with Installed() as m:
        on_the_bus(m)
        pid = m.main_pid()
        m.run("systemctl", "restart", "dbus")
        on_the_bus(m)
        assert call(m, "ListModels")[0] == 0 and m.main_pid() == pid and m.show("NRestarts") == "0"


def test_the_service_serves_while_there_is_no_bus():
    with Installed() as m:
        on_the_bus(m)
        pid = m.main_pid()
        m.run("systemctl", "stop", "dbus.socket", "dbus.service")
        assert m.try_run("busctl", "status").returncode != 0 and m.answer("x") == "short"
        m.run("fastchat", "reload")
        m.run("systemctl", "start", "dbus.socket")
        on_the_bus(m)
        assert call(m, "ListModels")[0] == 0 and m.main_pid() == pid


def test_an_upgrade_keeps_the_process_and_a_drain_ends_it():
    with Installed() as m:
        on_the_bus(m)
        pid = m.main_pid()
        assert call(m, "Upgrade")[0] == 0
        until("the next image serves", lambda: m.try_run("busctl", "get-property", NAME, PATH, NAME, "State").stdout == 's "serving"\n')
        assert m.main_pid() == pid and m.answer("x") == "short"
        assert call(m, "Drain", "s", "")[0] == 0
        until("it has stopped", lambda: m.state() == "inactive")
        assert (m.show("Result"), m.show("NRestarts")) == ("success", "0")


def test_the_example_starts_the_service_with_the_first_call():
    example = "/usr/share/doc/fastchat/examples/org.fastchat.Manager1.service"
    with Installed() as m:
        on_the_bus(m)
        m.run("systemctl", "stop", "fastchat")
        assert call(m, "ListModels", user="nobody")[0] != 0 and m.state() == "inactive"
        m.sh(f"mkdir -p /usr/local/share/dbus-1/system-services; cp {example} /usr/local/share/dbus-1/system-services/;"
             "busctl call org.freedesktop.DBus / org.freedesktop.DBus ReloadConfig")
        code, text = call(m, "ListModels", user="nobody")
        assert code == 0 and '"m"' in text, text
        until("it is active", lambda: m.state() == "active")


def test_it_is_on_the_bus_right_after_a_first_install():
    with Installed() as m:
        m.apt("purge", "fastchat")
        m.sh("userdel _fastchat; rm -rf /etc/fastchat")     # as before the first one ever: the bus reads a policy that names nobody
        m.run("systemctl", "restart", "dbus")
        m.install("fastchat")
        on_the_bus(m)
        assert call(m, "Reload")[0] == 0


run(globals())
