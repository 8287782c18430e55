"""Run an exported policy: neither JAX nor rescore is imported. Usage: control_loop.py FILE [ENV]"""

import sys

import gymnasium
import numpy as np
import onnxruntime

policy = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
noise_shape = next((i.shape for i in policy.get_inputs() if i.name == "noise"), None)
random = np.random.default_rng(0)
env = gymnasium.make(sys.argv[2] if len(sys.argv) > 2 else "InvertedPendulum-v4")
observation, _ = env.reset(seed=0)
total, ended = 0.0, False
while not ended:
    given = {"observation": np.asarray(observation, np.float32)}
    if noise_shape:
        given["noise"] = random.standard_normal(noise_shape, np.float32)
    (action,) = policy.run(None, given)
    observation, reward, terminated, truncated, _ = env.step(action)
    total, ended = total + float(reward), terminated or truncated
assert "jax" not in sys.modules and "rescore" not in sys.modules
print(f"return {total:.1f}")
