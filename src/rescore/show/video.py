"""Videos of a policy: OpenGL where the machine has it, our own drawing where it has not."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rescore.core import UsageError
from rescore.files.atomic import replacing
from rescore.show.sketch import Painter, Sketch, View, choose_view, sky

MAX_FPS, DEFAULT_FPS = 60, 30

Policy = Callable[[Any], np.ndarray]  # observation and action as the task knows them


class VideoInfo(NamedTuple):
    """What was recorded, and how."""

    path: Path
    renderer: str  # "mujoco egl" | "mujoco osmesa" | "mujoco glfw" | "software" | "env"
    frames: int
    fps: float
    size: tuple[int, int]
    notice: str  # why a better renderer was not used, or empty


def record(
    make: Callable[[], Any],
    policy: Policy,
    path: str | os.PathLike[str],
    *,
    seconds: float = 10.0,
    seed: int = 0,
    size: tuple[int, int] = (480, 480),
) -> VideoInfo:
    """Records the policy in real time as H.264, episode after episode until the time is up."""
    choose_gl()
    size = (size[0] + size[0] % 2, size[1] + size[1] % 2)  # yuv420p halves both sides
    path, stage = Path(path), make()
    try:
        native = float(stage.metadata.get("render_fps") or DEFAULT_FPS)
        if _is_dm_control(stage):
            native = 1.0 / stage.unwrapped.dt  # shimmy's metadata are off by powers of ten
        stride = math.ceil(native / MAX_FPS)
        fps = native / stride
        frames = max(round(seconds * fps), 1)
        obs = _reset(stage, seed)
        camera, notice = _open_camera(stage, size)
        try:
            size = _encode(_pictures(stage, policy, obs, camera, frames, stride), path, fps)
        finally:
            camera.painter.close()
    finally:
        stage.close()
    return VideoInfo(path, camera.painter.name, frames, fps, size, notice)


def choose_gl() -> str | None:
    """Sets MUJOCO_GL to an off-screen library that is here, if nothing was chosen and no display.

    MuJoCo reads the variable when it is imported and fails if the library is missing: call this
    first, and it will be set only to what can be loaded.
    """
    chosen = os.environ.get("MUJOCO_GL")
    if chosen or os.environ.get("DISPLAY") or not sys.platform.startswith("linux"):
        return chosen
    if _loads("libEGL.so.1") and (_loads("libOpenGL.so.0") or _loads("libGL.so.1")):
        os.environ["MUJOCO_GL"] = "egl"
    elif _loads("libOSMesa.so.8") or _loads("libOSMesa.so.6"):
        os.environ["MUJOCO_GL"] = "osmesa"
    return os.environ.get("MUJOCO_GL")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


class _Camera(NamedTuple):
    painter: Painter
    view: View | None

    def picture(self, data: Any) -> np.ndarray:
        return self.painter.draw(data, self.view and self.view.follow(data))


def _reset(env: Any, seed: int) -> Any:
    """The first observation of an environment whose actions can be clipped."""
    from gymnasium.spaces import Box

    if not isinstance(env.action_space, Box):
        raise UsageError(f"video needs a Box of actions, not {env.action_space}")
    return env.reset(seed=seed)[0]


def _pictures(
    env: Any, policy: Policy, obs: Any, camera: _Camera, frames: int, stride: int
) -> Iterator[np.ndarray]:
    """Frames of the policy at work, `stride` steps apart, episode after episode."""
    box = env.action_space
    for frame in range(frames):
        yield camera.picture(_simulation(env)[1])
        for _ in range(stride if frame + 1 < frames else 0):
            action = policy(obs)
            action = np.asarray(action, box.dtype).reshape(box.shape).clip(box.low, box.high)
            obs, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                obs, _ = env.reset()


def _simulation(env: Any) -> tuple[Any, Any]:
    """MuJoCo's model and data behind the environment, or a pair of None."""
    model = getattr(env.unwrapped, "model", None)
    return (model, env.unwrapped.data) if type(model).__name__ == "MjModel" else (None, None)


def _is_dm_control(env: Any) -> bool:
    return type(env.unwrapped).__name__ == "DmControlCompatibilityV0"


def _own_view(env: Any, model: Any) -> View | None:
    """The free camera that a task describes in full, as those of gymnasium-robotics do."""
    camera = getattr(getattr(env.unwrapped, "mujoco_renderer", None), "default_cam_config", None)
    if not camera or not {"azimuth", "elevation", "lookat", "distance"} <= camera.keys():
        return None
    lookat, fovy = np.array(camera["lookat"], float), float(model.vis.global_.fovy)
    return View(camera["azimuth"], camera["elevation"], lookat, camera["distance"], fovy, None)


def _open_camera(env: Any, size: tuple[int, int]) -> tuple[_Camera, str]:
    """The best painter that can really draw the current state, and what was wrong with better."""
    model, data = _simulation(env)
    view, makers = None, list[Callable[[], Painter]]([lambda: EnvPainter(env)])
    if model is not None:
        view = _own_view(env, model) or choose_view(model, data, size[0] / size[1])
        makers = [lambda: GLPainter(model, size), lambda: Sketch(model, size)]
    elif _is_dm_control(env):  # its first camera, by its own renderer
        has_camera = env.unwrapped.physics.model.ncam > 0
        asked = {"width": size[0], "height": size[1], "camera_id": 0 if has_camera else -1}
        env.unwrapped.render_kwargs = asked | env.unwrapped.render_kwargs
    failures = []
    for make in makers:
        try:
            camera = _Camera(make(), view)
            camera.picture(data)
        except Exception as error:  # drivers fail in every way: import, attribute, GL, MuJoCo
            failures.append(f"{type(error).__name__}: {error}".splitlines()[0])
        else:
            return camera, "; ".join(failures)
    what = "install libegl1 or Pillow" if view else "make it with rgb_array and its render packages"
    raise UsageError(f"cannot draw {env.unwrapped}, {what}: {'; '.join(failures)}")


class EnvPainter(Painter):
    """The environment's own picture, for those that are not MuJoCo's."""

    name = "env"

    def __init__(self, env: Any):
        self._env = env

    def draw(self, data: Any, view: None) -> np.ndarray:
        if self._env.render_mode != "rgb_array":
            raise RuntimeError("it was not made with render_mode='rgb_array'")
        picture = np.asarray(self._env.render(), dtype=np.uint8)
        height, width = (side - side % 2 for side in picture.shape[:2])
        return picture[:height, :width, :3]


class GLPainter(Painter):
    """MuJoCo's renderer, off screen."""

    def __init__(self, model: Any, size: tuple[int, int]):
        import mujoco

        self._mujoco, self._model = mujoco, model
        backend, self._context = _gl_context(size)
        self.name = f"mujoco {backend}"
        self._context.make_current()
        width, height = size
        model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
        model.vis.global_.offheight = max(height, model.vis.global_.offheight)
        # A CPU draws most of these pictures; the default shadow map costs it more than all else.
        model.vis.quality.shadowsize = 1024
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._scene = mujoco.MjvScene(model, 2000)
        self._buffer = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._buffer)
        has_sky = np.any(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)
        self._sky = None if has_sky else sky(width, height)  # else the backdrop would be black

    def draw(self, data: Any, view: View) -> np.ndarray:
        mujoco = self._mujoco
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_FREE
        camera.azimuth, camera.elevation = view.azimuth, view.elevation
        camera.lookat[:], camera.distance = view.lookat, view.distance
        extras = mujoco.MjvOption(), mujoco.MjvPerturb(), camera, mujoco.mjtCatBit.mjCAT_ALL
        picture = np.empty((self._rect.height, self._rect.width, 3), dtype=np.uint8)
        depth = np.empty(picture.shape[:2], dtype=np.float32)
        self._context.make_current()
        mujoco.mjv_updateScene(self._model, data, *extras, self._scene)
        mujoco.mjr_render(self._rect, self._scene, self._buffer)
        mujoco.mjr_readPixels(picture, depth, self._rect, self._buffer)
        picture, depth = picture[::-1], depth[::-1]  # OpenGL counts rows from below
        return picture if self._sky is None else np.where(depth[..., None] < 1, picture, self._sky)

    def close(self) -> None:
        self._buffer.free()
        self._context.free()


def _gl_context(size: tuple[int, int]) -> tuple[str, Any]:
    """The context that MUJOCO_GL names, or the first that can be made."""
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen in ("disable", "disabled", "off", "false", "0"):
        raise RuntimeError(f"MUJOCO_GL={chosen}")
    failures, known = [], ("egl", "osmesa", "glfw")
    for backend in (chosen,) if chosen in known else known:
        try:
            return backend, import_module(f"mujoco.{backend}").GLContext(*size)
        except Exception as error:  # PyOpenGL answers a missing library with an AttributeError
            failures.append(f"{backend}: {error}")
    raise RuntimeError(", ".join(failures))


def _encode(pictures: Iterator[np.ndarray], path: Path, fps: float) -> tuple[int, int]:
    """Writes the video; returns its width and height."""
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        raise UsageError("no ffmpeg to write mp4 files: pip install imageio-ffmpeg") from None
    first = next(pictures)
    size = first.shape[1], first.shape[0]
    settings = {"fps": fps, "codec": "libx264", "quality": 7, "macro_block_size": 2}
    settings["output_params"] = ["-f", "mp4", "-movflags", "+faststart"]
    with replacing(path) as part:
        writer = imageio_ffmpeg.write_frames(str(part), size, **settings)
        try:
            writer.send(None)
            for picture in chain([first], pictures):
                writer.send(np.ascontiguousarray(picture))
        finally:
            writer.close()
    return size
