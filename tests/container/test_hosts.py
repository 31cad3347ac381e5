"""Two hosts: one with the whole service, one that only runs a worker for it, and the wire between them."""
import contextlib
import json

from packages import PLAY, Installed
from rig import Wire, run
from service import events, together, until

WORKER = """supervisor = {{ parts = "workers"; }};
models = ( {{ name = "far"; device = "scripted"; path = "{play}"; parallel = 256; queue = 300; controllers = ( "10.99.0.1:21001" );
              listen = "0.0.0.0:21002"; advertise = "10.99.0.2:21002"; }} );
"""


@contextlib.contextmanager
def hosts():
    """(front, back): the model "far" runs on back for front's controller"""
    with Wire() as wire, Installed(wire=wire) as front, Installed(wire=wire) as back:
        front.settings(front.read("/etc/fastchat/conf.d/test.conf") + 'controller = { listen = "0.0.0.0:21001"; lease_s = 5; };\n')
        front.run("systemctl", "reload", "fastchat")
        back.run("systemctl", "disable", "--now", "fastchat")
        back.write("/etc/fastchat/workers/far.conf", WORKER.format(play=PLAY))
        back.run("systemctl", "enable", "--now", "fastchat-worker@far")
        until("the worker of the other host serves", lambda: far(front))
        yield front, back


def asked(front):
    """The status of an answer of the far model; None where there is none within some seconds, as on a wire that is cut."""
    c = front.connect()
    with contextlib.closing(c):
        c.connect()
        c.sock.settimeout(5)
        try:
            c.request("POST", "/v1/chat/completions", json.dumps({"model": "far", "messages": [{"role": "user", "content": "x"}]}))
            return c.getresponse().status
        except TimeoutError:
            return None


def far(front):
    return asked(front) == 200


def test_a_worker_of_another_host_serves_and_comes_back():
    with hosts() as (front, back):
        status = back.cli("status", "--runtime-dir", "/run/fastchat-worker/far")
        assert status.returncode == 0 and "worker far/0" in status.stdout, status
        back.kill("KILL", back.show("MainPID", "fastchat-worker@far.service"))
        until("it serves again", lambda: back.show("NRestarts", "fastchat-worker@far.service") == "1" and far(front))
        front.run("systemctl", "restart", "fastchat")
        until("it has found the new controller", lambda: far(front))


def test_a_host_that_is_cut_off_costs_its_models_alone_until_it_is_back():
    with hosts() as (front, back):
        back.sh("ip link set host0 down")
        until("the model is known to be away", lambda: asked(front) in (404, 503))
        together(4, lambda i: [front.answer("x") for _ in range(10)])       # the own one is there all the while
        assert front.state() == "active" and front.show("NRestarts") == "0"
        back.sh("ip link set host0 up")
        until("it serves again", lambda: far(front))
        assert back.show("NRestarts", "fastchat-worker@far.service") == "0"


def test_an_answer_that_comes_from_a_host_that_is_cut_off_ends_in_an_error():
    with hosts() as (front, back), front.stream("go on", model="far") as r:
        assert r.readline().startswith(b"data: ")
        back.sh("ip link set host0 down")
        rest = list(events(r))
        assert "error" in rest[-1], rest[-3:]


run(globals())
