"""Search for settings as `rescore sweep` does, and take the best policy that it found.

Trials are processes of their own, two at a time; stop it in any way and start it again to go on.
"""

import sys
from pathlib import Path

import rescore
from rescore.bench.sweep import Choice, Search, draw, summary

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
SMALL = "--hidden 8 8 --warmup 50 --batch-size 16 --eval-episodes 1" if STEPS < 1_000 else ""

words = f"train sac InvertedPendulum-v4 --steps {STEPS} --eval-every {STEPS // 5} {SMALL}"
search = Search(
    out=Path("pendulum-search"),
    train=tuple(words.split()),
    space=(Choice.read("actor-lr=1e-4:1e-2:log"), Choice.read("gamma=0.9,0.98,0.99")),
    trials=2 if SMALL else 12,
    steps=STEPS,
    workers=2,
)
if not search.run():
    sys.exit("stopped: start it again to go on")
study = search.study()
found = summary(study)
print(found, draw(study, search.out / "sweep.png"))
agent = rescore.Agent.load(search.folder(found["trial"]))  # a trial is a run like any other
print(agent.evaluate(episodes=2).summary())
