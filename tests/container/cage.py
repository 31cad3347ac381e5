"""The cage of fastchat.service around another command."""
import os
import re

from rig import BUILD

# What makes a service of it, and not a cage.
SERVICE = re.compile(r"Type|NotifyAccess|Exec|Restart|RuntimeDirectory|Watchdog|Timeout|FileDescriptorStore|KillMode|OOMPolicy")


def cage():
    """The unit's properties as arguments of systemd-run."""
    with open(os.path.join(BUILD, "units", "fastchat.service"), encoding="utf-8") as f:
        lines = f.read().split("[Service]\n")[1].split("\n[")[0].splitlines()
    return [f"-p{line}" for line in lines if "=" in line and line[0] != "#" and not SERVICE.match(line)]
