"""Follow a run, and end it when it is good enough: a callback that returns False stops cleanly."""

import sys

import rescore
from rescore.training.callbacks import Event

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
SMALL = {"hidden": (16, 16), "training": {"warmup": 50, "batch_size": 32, "eval_every": 50}}


def good_enough(event: Event) -> bool | None:
    print(event.kind, event.env_steps, {k: v for k, v in event.values.items() if k == "mean"})
    return False if event.kind == "evaluation" and event.values["mean"] > 3 else None


agent = rescore.Agent("sac", "InvertedPendulum-v4", **(SMALL if STEPS < 1_000 else {}))
agent.learn(STEPS, callback=good_enough)
print(agent.status, "after", agent.run.env_steps, "steps:", agent)
