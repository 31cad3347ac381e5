"""./quickstart as somebody at a terminal ends it."""
import os
import signal
import subprocess

from service import CEILING, SOURCE, real_model, run, scratch, until


def start():
    """quickstart in the foreground, its service up."""
    real_model()
    folder = scratch()
    log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
    p = subprocess.Popen([os.path.join(SOURCE, "quickstart")], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True,
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),      # nohup leaves it ignored, and a shell keeps that
                         env=dict(os.environ, RUNTIME_DIRECTORY=os.path.join(folder, "run")))

    def text():
        log.seek(0)
        return log.read()

    def up():
        assert p.poll() is None, text()
        return "runs in the foreground" in text()
    until("the service is up", up)
    pid = int(text().split("    process ")[1].split(",")[0])
    return p, pid, text


def gone(pid):
    return not os.path.exists(f"/proc/{pid}")


def ended_by(sig, code, again=False):
    p, pid, text = start()
    p.send_signal(sig)
    if again:
        p.send_signal(sig)
    assert p.wait(CEILING) == code, text()
    assert gone(pid), "quickstart ended before its service"


def test_a_closed_terminal_stops_the_service():
    ended_by(signal.SIGHUP, 129)


def test_a_request_to_end_stops_the_service_first_also_when_it_comes_twice():
    ended_by(signal.SIGTERM, 143, again=True)


if __name__ == "__main__":
    run(globals())
