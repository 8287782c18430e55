"""Train a diffusion policy, and write it as one ONNX file for `control_loop.py`."""

import sys

import rescore

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
SMALL = {"hidden": (16, 16), "training": {"warmup": 50, "batch_size": 32}} if STEPS < 1_000 else {}

agent = rescore.Agent("dpmd", "InvertedPendulum-v4", **SMALL).learn(STEPS, evaluate=False)
made = agent.export("policy.onnx")
print(f"{made.path}: {made.bytes / 1e3:.0f} kB, {made.ms:.3f} ms per action")
print(f"differs from predict by at most {made.difference:.1e}")
