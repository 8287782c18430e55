"""Videos that can be played, by either renderer, and drawings that show where things are."""

import os

import numpy as np
import pytest

from rescore.core import UsageError
from rescore.envs.task import Task
from rescore.show import video
from rescore.show.sketch import Sketch, choose_view
from rescore.show.video import record

pytest.importorskip("mujoco")


class RandomPolicy:
    def __init__(self, act_dim):
        self.act_dim = act_dim
        self.random = np.random.default_rng(0)

    def __call__(self, obs):
        assert obs.ndim == 1
        return self.random.uniform(-1, 1, self.act_dim)


def frames_of(path):
    import imageio

    with imageio.get_reader(path) as reader:
        frames = np.stack([frame for frame in reader])  # noqa: C416 its length is infinite
        return frames, reader.get_meta_data()


def check_video(info, path):
    frames, meta = frames_of(path)
    assert len(frames) == info.frames and frames.shape[1:3] == info.size[::-1]
    assert meta["codec"] == "h264" and "yuv420p" in meta["pix_fmt"]
    assert meta["fps"] == pytest.approx(info.fps, abs=0.01)
    assert frames.mean() > 5 and frames[0].std() > 5
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 30


@pytest.mark.parametrize("renderer", ["gl", "software"])
@pytest.mark.parametrize(("env_id", "act_dim"), [("InvertedPendulum-v4", 1), ("HalfCheetah-v4", 6)])
def test_both_renderers(tmp_path, monkeypatch, env_id, act_dim, renderer):
    path = tmp_path / "videos" / "one.mp4"
    if renderer == "software":
        monkeypatch.setenv("MUJOCO_GL", "disabled")
    make = Task.of(env_id).pictured
    info = record(make, RandomPolicy(act_dim), path, seconds=0.8, size=(161, 120))
    if renderer == "gl" and info.renderer == "software":
        pytest.skip(info.notice)
    assert info.renderer.startswith("mujoco" if renderer == "gl" else "software")
    assert info.size == (162, 120)
    check_video(info, path)
    assert os.listdir(path.parent) == ["one.mp4"]


def test_without_gl_the_drawing_takes_over(tmp_path, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    make = Task.of("Hopper-v4").pictured
    info = record(make, RandomPolicy(3), tmp_path / "a.mp4", seconds=0.3, size=(96, 96))
    assert info.renderer == "software" and "disabled" in info.notice
    # 125 steps a second: every third is shown, in real time.
    assert info.fps == pytest.approx(125 / 3) and info.frames == 12


def test_refusals_leave_no_file(tmp_path):
    import gymnasium

    class Blind(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Box(-1, 1, (1,))

        def reset(self, *, seed=None, options=None):
            return np.zeros(2), {}

    with pytest.raises(UsageError, match="rgb_array"):
        record(Blind, RandomPolicy(1), tmp_path / "a.mp4")
    with pytest.raises(UsageError, match="NoSuch"):
        record(Task.of("NoSuch-v0").pictured, RandomPolicy(1), tmp_path / "a.mp4")

    def stumble(obs):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make = Task.of("InvertedPendulum-v4").pictured
        record(make, stumble, tmp_path / "a.mp4", size=(64, 64))
    assert not list(tmp_path.iterdir())


def test_actions_reach_the_box(tmp_path, monkeypatch):
    import gymnasium

    seen = []

    class Watch(gymnasium.ActionWrapper):
        def action(self, action):
            seen.append(float(action[0]))
            return action

    def make():
        return Watch(gymnasium.make("InvertedPendulum-v4"))  # its box is [-3, 3]

    monkeypatch.setenv("MUJOCO_GL", "disabled")
    options = {"seconds": 0.2, "size": (64, 64)}
    for action in (3.0, -6.0):
        record(make, lambda obs, action=action: np.full(1, action), tmp_path / "a.mp4", **options)
    assert set(np.sign(seen)) == {1.0, -1.0} and max(np.abs(seen)) == pytest.approx(3.0)


def test_gl_is_chosen_only_where_needed(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert video.choose_gl() == "glfw"
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setenv("DISPLAY", ":0")
    assert video.choose_gl() is None
    monkeypatch.delenv("DISPLAY")
    monkeypatch.setattr(video.sys, "platform", "linux")
    monkeypatch.setattr(video, "_loads", lambda library: False)
    assert video.choose_gl() is None and "MUJOCO_GL" not in os.environ
    monkeypatch.setattr(video, "_loads", lambda library: "OSMesa" in library)
    assert video.choose_gl() == "osmesa"


SOLIDS = """<mujoco><worldbody>
<geom type="plane" size="9 9 1"/>
<body pos="0 0 1"><freejoint/>
  <geom type="box" size=".2 .2 .2" rgba="1 0 0 1"/>
  <geom type="cylinder" size=".1 .3" pos="1 0 0" rgba="0 1 0 1"/>
  <geom type="ellipsoid" size=".1 .2 .3" pos="-1 0 0" rgba="0 0 1 1"/>
  <geom type="sphere" size=".2" pos="0 1 0" rgba="1 1 0 1"/>
  <geom type="capsule" size=".1 .2" pos="0 -1 0" rgba="1 0 1 1"/>
</body></worldbody></mujoco>"""


def test_every_solid_is_drawn_where_it_is():
    import mujoco

    model = mujoco.MjModel.from_xml_string(SOLIDS)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    view = choose_view(model, data)
    assert view.body == 1
    picture = Sketch(model, (200, 200)).draw(data, view).astype(int)
    assert picture.shape == (200, 200, 3)
    right, up, forward = view.frame()
    np.testing.assert_allclose(np.cross(right, forward), up, atol=1e-12)
    for geom in range(1, model.ngeom):
        offset = data.geom_xpos[geom] - view.lookat + view.distance * forward
        zoom = 100 / np.tan(np.radians(view.fovy / 2)) / (offset @ forward)
        column, row = 100 + zoom * (offset @ right), 100 - zoom * (offset @ up)
        shown = picture[int(row), int(column)]
        wanted = model.geom_rgba[geom, :3]
        assert (shown[wanted == 1] > shown[wanted == 0].max() + 60).all()


def test_a_camera_that_the_task_describes_is_taken(monkeypatch):
    """As gymnasium-robotics does; a camera of which something is missing is not."""
    import gymnasium

    monkeypatch.setenv("MUJOCO_GL", "disabled")
    own = {"azimuth": 132.0, "elevation": -14.0, "lookat": (1.3, 0.75, 0.55), "distance": 2.5}
    for camera, taken in ((own, True), ({"trackbodyid": 0, "distance": 2.0}, False)):
        with gymnasium.make("InvertedPendulum-v5", default_camera_config=camera) as env:
            env.reset(seed=0)
            opened, _ = video._open_camera(env, (64, 64))
            view = opened.view
            assert view is not None and (view.distance == 2.5) == taken
            if taken:
                assert (view.azimuth, view.elevation, view.body) == (132.0, -14.0, None)
                np.testing.assert_array_equal(view.lookat, own["lookat"])


def test_dm_control_films_with_its_first_camera_in_real_time(tmp_path):
    """By a stand-in of shimmy's wrapper."""
    import types

    import gymnasium

    class DmControlCompatibilityV0(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Box(-1, 1, (1,))
        metadata = {"render_fps": 10.0, "render_modes": ["rgb_array"]}  # noqa: RUF012
        render_mode, dt, asked = "rgb_array", 0.01, {}
        physics = types.SimpleNamespace(model=types.SimpleNamespace(ncam=2))

        def __init__(self):
            self.render_kwargs = {"height": 48}

        def reset(self, *, seed=None, options=None):
            return np.zeros(2), {}

        def step(self, action):
            return np.zeros(2), 0.0, False, False, {}

        def render(self):
            self.asked.update(self.render_kwargs)
            return np.full((48, self.render_kwargs["width"], 3), 99, np.uint8)

    info = record(
        DmControlCompatibilityV0, lambda obs: np.zeros(1), tmp_path / "a.mp4", seconds=0.2
    )
    assert (info.fps, info.frames, info.size) == (50.0, 10, (480, 48))
    assert DmControlCompatibilityV0.asked == {"width": 480, "height": 48, "camera_id": 0}


def test_dm_control_itself(tmp_path):
    pytest.importorskip("shimmy.dm_control_compatibility")
    task = "dm_control/cartpole-swingup-v0"
    try:
        info = record(
            Task.of(task).pictured, lambda obs: np.ones(1), tmp_path / "b.mp4", seconds=0.3
        )
    except UsageError as error:
        pytest.skip(str(error))
    assert info.renderer == "env" and info.fps == 50.0 and info.size == (480, 480)
    check_video(info, tmp_path / "b.mp4")
