"""fastchat-static in place of fastchat, and back. Needs the archives that it is made of, so ./check --all runs it, with FASTCHAT_DEPS."""
import glob
import os
import shutil
import subprocess
import tempfile

from rig import Container, run
from service import SOURCE, NotHere

PLACE = "/srv/fastchat"


def repository():
    """A signed one with both packages."""
    if not os.path.exists(os.path.join(os.environ.get("FASTCHAT_DEPS", "/nowhere"), "VERSIONS")):
        raise NotHere("FASTCHAT_DEPS does not name what tools/static-deps.sh makes")
    folder = tempfile.mkdtemp(prefix="fastchat-static-")
    try:
        subprocess.run([os.path.join(SOURCE, "packaging/deb/build"), folder + "/out", "fastchat", "fastchat-static"], check=True,
                       stdout=subprocess.DEVNULL, env=dict(os.environ, DEB_BUILD_OPTIONS="nocheck"))
        debs = [d for d in glob.glob(folder + "/out/*.deb") if "dbgsym" not in d]
        subprocess.run([os.path.join(SOURCE, "packaging/deb/repo"), "--url", "file:" + PLACE, folder + "/repo", *debs], check=True)
    except BaseException:
        shutil.rmtree(folder)
        raise
    return folder


def test_either_package_takes_the_other_one_s_place_with_its_configuration_and_state():
    folder = repository()
    try:
        with Container(binds={PLACE: folder + "/repo"}) as m:
            m.sh(f"cp {PLACE}/fastchat.sources /etc/apt/sources.list.d/")
            m.apt("update")
            m.apt("install", "--no-install-recommends", "fastchat", "curl")
            m.sh("echo '# ours' >> /etc/fastchat/fastchat.conf; echo x > /var/lib/fastchat/state")
            for there, gone in (("fastchat-static", "fastchat"), ("fastchat", "fastchat-static")):
                m.apt("install", "--no-install-recommends", there)
                for _ in range(2):          # the second time without what is left of the other one
                    assert m.sh("systemctl is-active fastchat; systemctl is-enabled fastchat").split() == ["active", "enabled"], there
                    assert m.sh("tail -n 1 /etc/fastchat/fastchat.conf; cat /var/lib/fastchat/state") == "# ours\nx\n", there
                    assert m.request("GET", "/v1/models")[2] == {"object": "list", "data": []}
                    linked = m.try_run("ldd", "/usr/sbin/fastchatd").stdout
                    assert ("statically linked" in linked) == (there == "fastchat-static"), linked
                    m.run("dpkg", "--purge", gone)
            m.run("dpkg", "--purge", "fastchat")
            assert m.try_run("test", "-e", "/var/lib/fastchat").returncode == 1
            assert m.try_run("systemctl", "cat", "fastchat.service").returncode != 0
    finally:
        shutil.rmtree(folder)


run(globals())
