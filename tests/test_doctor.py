"""The doctor answers on any machine, and every no comes with a remedy."""

import subprocess

from rescore.cli import doctor
from rescore.cli.doctor import Check, diagnose, physics, render


def test_diagnosis():
    checks = diagnose()
    by_name = {check.name: check for check in checks}
    assert len(by_name) == len(checks)
    assert by_name["python"].ok and by_name["numpy"].ok and by_name["jax devices"].ok
    assert all(check.detail for check in checks)
    assert all(bool(check.advice) != check.ok for check in checks)
    text = render(checks)
    assert all(check.name in text and check.advice in text for check in checks)


def test_a_crash_of_the_driver_is_a_finding(monkeypatch):
    monkeypatch.setattr(doctor, "RENDER", "import os; os.abort()")
    check = doctor._rendering()
    assert not check.ok and check.advice
    stuck = subprocess.TimeoutExpired("python", 1)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: (_ for _ in ()).throw(stuck))
    assert not doctor._rendering().ok


def test_physics():
    assert physics("3.4.0").ok and "Pusher-v4" in physics("3.4.0").detail
    assert physics("2.3.7").ok
    assert not physics("3.5.0").ok and "Humanoid" in physics("4.0.0rc1").detail
    assert not physics(None).ok


def test_render():
    text = render([Check("a", True, "fine"), Check("long name", False, "bad", "mend it")])
    assert text.splitlines() == [
        "ok  a          fine",
        "!!  long name  bad",
        "               -> mend it",
        "1 of 2 need attention",
    ]
