"""`rescore doctor`: is this machine ready? What is missing comes with a remedy."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rescore.core import one_line
from rescore.files.machine import PACKAGES, cpu_model, version_of

OTHERS = ("safetensors", "tyro", "rich", "matplotlib", "imageio", "imageio-ffmpeg", "tensorboardX")
ENOUGH_GB = 5.0
RENDER_TIMEOUT_S = 60

# Runs in a process of its own: a broken driver may take its process down with it.
RENDER = """
from rescore.show.video import GLPainter, choose_gl
choose_gl()
import mujoco
from rescore.show.sketch import choose_view
world = "<worldbody><light pos='0 0 3'/><geom size='.2'/></worldbody>"
model = mujoco.MjModel.from_xml_string(f"<mujoco>{world}</mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
painter = GLPainter(model, (64, 64))
picture = painter.draw(data, choose_view(model, data))
assert picture.std() > 1, "the picture is empty"
print("renderer:", painter.name)
"""


@dataclass(frozen=True)
class Doctor:
    """Check versions, devices, rendering and physics; says what to do about each problem."""

    def execute(self) -> int:
        checks = diagnose()
        print(render(checks))
        return 0 if all(check.ok for check in checks) else 1


class Check(NamedTuple):
    """One finding; `advice` is empty when there is nothing to do."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


def diagnose() -> list[Check]:
    """All findings about this machine, in the order in which to mend them."""
    return [
        Check("python", True, platform.python_version()),
        *(_package(name) for name in (*PACKAGES, *OTHERS)),
        _devices(),
        _cores(),
        physics(version_of("mujoco")),
        _rendering(),
        _ffmpeg(),
        _disk(),
    ]


def render(checks: Iterable[Check]) -> str:
    """The findings as aligned lines, each remedy under its finding."""
    checks = list(checks)
    width = max((len(check.name) for check in checks), default=0)
    lines = []
    for check in checks:
        lines.append(f"{'ok' if check.ok else '!!'}  {check.name:<{width}}  {check.detail}")
        if check.advice:
            lines.append(f"    {'':<{width}}  -> {check.advice}")
    failed = sum(not check.ok for check in checks)
    lines.append("all well" if not failed else f"{failed} of {len(checks)} need attention")
    return "\n".join(lines)


def physics(version: str | None) -> Check:
    """Which published results this MuJoCo can be compared with."""
    if version is None:
        return Check("physics", False, "no MuJoCo", "pip install 'gymnasium[mujoco]' mujoco==3.4.0")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < (3, 0):
        return Check("physics", True, "contacts as published; Pusher-v4 runs")
    if numbers < (3, 5):
        return Check("physics", True, "contacts as published; Pusher-v4 needs mujoco<3, use v5")
    detail = f"mujoco {version}: contact margins of Ant, Hopper, Humanoid, Pusher differ since 3.5"
    return Check(
        "physics", False, detail, "to compare with older results: pip install mujoco==3.4.0"
    )


def _package(name: str) -> Check:
    version = version_of(name)
    return judged(name, version is not None, version or "not installed", f"pip install {name}")


def _devices() -> Check:
    try:
        import jax

        found = [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()]
    except Exception as error:  # a backend may fail in any way of its own
        advice = "set JAX_PLATFORMS=cpu, or reinstall jax for this machine"
        return Check("jax devices", False, said(error), advice)
    return Check("jax devices", True, ", ".join(found))


def _cores() -> Check:
    present = os.cpu_count() or 1
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        usable = present
    detail = f"{usable} of {present} usable, {cpu_model()}"
    advice = "allow this process two cores or more (taskset, quota)"
    return judged("cpu cores", usable >= 2, detail, advice)


def _rendering() -> Check:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    advice = "apt install libegl1 libgl1 (videos are drawn in software meanwhile)"
    command = [sys.executable, "-W", "ignore", "-c", RENDER]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=RENDER_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("rendering", False, said(error), advice)
    found = re.search(r"renderer: (.+)", done.stdout)
    if done.returncode == 0 and found:
        return Check("rendering", True, f"{found[1]} draws off screen")
    reason = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
    return Check("rendering", False, reason, advice)


def _ffmpeg() -> Check:
    try:
        import imageio_ffmpeg

        detail = f"{imageio_ffmpeg.get_ffmpeg_version()} at {imageio_ffmpeg.get_ffmpeg_exe()}"
    except (ImportError, RuntimeError, OSError) as error:
        return Check("ffmpeg", False, said(error), "pip install imageio-ffmpeg")
    return Check("ffmpeg", True, detail)


def _disk() -> Check:
    free = shutil.disk_usage(".").free / 1e9
    detail = f"{free:,.1f} GB free in {os.getcwd()}"
    advice = "a checkpoint with its replay may take 3 GB: free some space"
    return judged("disk", free >= ENOUGH_GB, detail, advice)


def judged(name: str, ok: bool, detail: str, advice: str) -> Check:
    """A finding whose advice is needed only if it is not well."""
    return Check(name, ok, detail, "" if ok else advice)


def said(error: Exception) -> str:
    return one_line(error) or type(error).__name__
