"""The configuration as the command line and the daemon show it."""
import os
import shutil
import subprocess

from service import BUILD, CEILING, run, scratch, script_file

TMP = scratch()
STRANGER = 54321                        # no such user anywhere


def somebody():
    """A process of this is nobody whom modes let through."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)


def copied(program):
    """Where anybody may run it."""
    os.chmod(TMP, 0o755)
    path = os.path.join(TMP, program)
    if not os.path.exists(path):
        shutil.copy(os.path.join(BUILD, program), path)
    return path


def check_as_somebody(config):
    return subprocess.run([copied("fastchatd"), "--check-config", "-c", config], capture_output=True, text=True, timeout=CEILING,
                          preexec_fn=somebody, cwd="/", check=False)


def test_a_model_that_the_service_may_not_read_names_the_folder_that_denies_it():
    home = os.path.join(TMP, "ann")
    os.makedirs(os.path.join(home, "models"))
    model = script_file(os.path.join(home, "models"), "m")
    config = os.path.join(TMP, "denied.conf")
    with open(config, "w", encoding="utf-8") as f:
        f.write(f'supervisor: {{ model_folders = ( "{home}/models" ); }};\nmodels: ( {{ name = "m"; path = "{model}"; }} );\n')
    os.chmod(home, 0o000)
    got = check_as_somebody(config)
    assert got.returncode == 78 and f"{config}:2: models[0].path: {model}: user " in got.stderr, got
    assert f" cannot enter the folder {home} (mode 0000, " in got.stderr, got
    os.chmod(home, 0o755)
    os.chmod(model, 0o200)
    got = check_as_somebody(config)
    assert got.returncode == 78 and f" cannot read {model} (mode 0200, " in got.stderr and "setfacl -m u:" in got.stderr, got
    os.chmod(model, 0o644)
    os.chmod(os.path.join(home, "models"), 0o311)
    got = check_as_somebody(config)
    assert got.returncode == 0 and f"note: {home}/models: no models from there: user " in got.stdout, got
    os.chmod(os.path.join(home, "models"), 0o755)


if __name__ == "__main__":
    run(globals())
