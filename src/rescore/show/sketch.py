"""A picture of a MuJoCo scene without OpenGL: solids as shaded outlines, drawn back to front.

It needs the model, the data, SciPy and Pillow only, so that a machine without graphics libraries
still gets its video. The view is shared with the OpenGL renderer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

# MuJoCo's numbers for joint and geom types, so that nothing is imported for them.
FREE, SLIDE, HINGE = 0, 2, 3
PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX = 0, 2, 3, 4, 5, 6

SKY_TOP, SKY_LOW = np.array((120, 160, 200)), np.array((226, 236, 244))
FLOOR, TILE = np.array((206, 212, 216)), np.array((170, 180, 188))
TILES = 14  # on each side of what is followed
SMOOTH = 2  # drawn this much larger, then shrunk
NEAR = 0.05
CIRCLE = np.linspace(0, 2 * np.pi, 24, endpoint=False)
LIGHT = np.array((-0.35, -0.45, 0.82))


class View(NamedTuple):
    """A camera in MuJoCo's terms (degrees), and the body it follows."""

    azimuth: float
    elevation: float
    lookat: np.ndarray  # [3]
    distance: float
    fovy: float
    body: int | None

    def follow(self, data: Any) -> View:
        """The view moved with its body along the ground."""
        if self.body is None:
            return self
        lookat = np.array((*data.xpos[self.body][:2], self.lookat[2]))
        return self._replace(lookat=lookat)

    def frame(self) -> np.ndarray:
        """Rows right, up, forward [3, 3]."""
        azimuth, elevation = math.radians(self.azimuth), math.radians(self.elevation)
        right = np.array((math.sin(azimuth), -math.cos(azimuth), 0.0))
        flat = np.array((math.cos(azimuth), math.sin(azimuth), 0.0))
        forward = math.cos(elevation) * flat + np.array((0, 0, math.sin(elevation)))
        return np.stack((right, np.cross(right, forward), forward))


def choose_view(model: Any, data: Any, aspect: float = 1.0) -> View:
    """From the side for planar tasks, from above for flat ones, else from a corner."""
    axes = np.abs(data.xaxis[model.jnt_type == HINGE])  # [hinges, 3] in the world
    if np.any(model.jnt_type == FREE) or len(axes) == 0:
        azimuth, elevation = 125.0, -18.0
    elif np.all(axes[:, 2] > 0.99):
        azimuth, elevation = 90.0, -89.0
    elif np.all(axes[:, 1] > 0.99):
        azimuth, elevation = 90.0, -8.0
    elif np.all(axes[:, 0] > 0.99):
        azimuth, elevation = 180.0, -8.0
    else:
        azimuth, elevation = 125.0, -25.0
    roams = (model.jnt_type == FREE) | ((model.jnt_type == SLIDE) & (model.jnt_limited == 0))
    body = int(model.jnt_bodyid[np.argmax(roams)]) if np.any(roams) else None
    fovy = float(model.vis.global_.fovy)
    view = View(azimuth, elevation, np.zeros(3), 1.0, fovy, body)
    low, high = _bounds(model, data, moving_only=body is not None)
    right, up, _ = np.abs(view.frame()) @ (high - low) / 2
    # Limbs reach out further while moving than at reset.
    reach = (1.7 if body is not None else 1.25) * max(right / aspect, up, 1e-3)
    distance = reach / math.tan(math.radians(fovy / 2))
    return view._replace(lookat=(low + high) / 2, distance=distance).follow(data)


def _bounds(model: Any, data: Any, moving_only: bool) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the box around the solids."""
    seen = _visible(model) & (model.geom_type != PLANE)
    moving = seen & (model.geom_bodyid > 0)
    seen = moving if moving_only and moving.any() else seen
    if not seen.any():
        return -np.ones(3), np.ones(3)
    turn = data.geom_xmat[seen].reshape(-1, 3, 3)
    middle, half = model.geom_aabb[seen, :3], model.geom_aabb[seen, 3:]
    middle = data.geom_xpos[seen] + np.einsum("gij,gj->gi", turn, middle)
    half = np.einsum("gij,gj->gi", np.abs(turn), half)
    return (middle - half).min(axis=0), (middle + half).max(axis=0)


def _visible(model: Any) -> np.ndarray:
    # MuJoCo, too, shows the groups 0 to 2 by default.
    return (model.geom_group < 3) & (_colours(model)[:, 3] > 0)


def _colours(model: Any) -> np.ndarray:
    """[ngeom, 4]: a geom's own colour unless a material gives one."""
    colours = np.array(model.geom_rgba)
    dressed = model.geom_matid >= 0
    plain = np.all(colours == np.array((0.5, 0.5, 0.5, 1), np.float32), axis=1)
    chosen = dressed & plain
    if chosen.any():
        colours[chosen] = model.mat_rgba[model.geom_matid[chosen]]
    return colours


class Painter:
    """Turns the simulation's state into a picture [height, width, 3], uint8."""

    name: str

    def draw(self, data: Any, view: Any) -> np.ndarray:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Sketch(Painter):
    """Draws the simulation's state, as seen from a view, with Pillow."""

    name = "software"

    def __init__(self, model: Any, size: tuple[int, int]):
        self._model, self._size = model, size
        self._colours = _colours(model)
        visible = _visible(model)
        self._planes = np.flatnonzero(visible & (model.geom_type == PLANE))
        self._solids = np.flatnonzero(visible & (model.geom_type != PLANE))

    def draw(self, data: Any, view: View) -> np.ndarray:
        from PIL import Image, ImageDraw

        width, height = (SMOOTH * side for side in self._size)
        lens = _Lens(view, width, height)
        image = Image.fromarray(sky(width, height))
        pen = ImageDraw.Draw(image)
        if len(self._planes):
            ground = float(data.geom_xpos[self._planes[0], 2])
            _draw_floor(pen, lens, ground, width, height)
            self._draw_shadows(image, data, lens, ground)
        depth = (data.geom_xpos[self._solids] - lens.eye) @ lens.forward
        for geom in self._solids[np.argsort(-depth)]:
            self._draw_solid(pen, data, lens, geom)
        return np.asarray(image.resize(self._size, Image.Resampling.BOX))

    def _draw_shadows(self, image: Any, data: Any, lens: _Lens, ground: float) -> None:
        from PIL import Image, ImageDraw

        mask = Image.new("L", image.size, 0)
        pen = ImageDraw.Draw(mask)
        for geom in self._solids:
            points = self._outline(data, lens, int(geom), flat=True)
            points = points[points[:, 2] >= ground]
            points[:, 2] = ground
            _fill(pen, lens.project(points), 70)
        image.paste(Image.new("RGB", image.size, (40, 50, 60)), mask=mask)

    def _draw_solid(self, pen: Any, data: Any, lens: _Lens, geom: int) -> None:
        colour = 255 * self._colours[geom, :3]
        edge = _rgb(0.5 * colour)
        line = max(SMOOTH, pen.im.size[0] // 320)
        if self._model.geom_type[geom] == BOX:
            for face, normal in self._faces(data, geom):
                if (face.mean(axis=0) - lens.eye) @ normal < 0:
                    light = 0.75 + 0.3 * float(normal @ LIGHT)
                    _fill(pen, lens.project(face), _rgb(light * colour), edge, line)
            return
        points = self._outline(data, lens, geom)
        _fill(pen, lens.project(points), _rgb(0.92 * colour), edge, line)
        if self._model.geom_type[geom] in (SPHERE, CAPSULE):
            radius = self._model.geom_size[geom, 0]
            shine = self._outline(data, lens, geom, scale=0.45)
            shine = shine + 0.35 * radius * (0.9 * lens.up - 0.5 * lens.right)
            _fill(pen, lens.project(shine), _rgb(0.92 * colour + 0.3 * (255 - colour)))

    def _outline(
        self, data: Any, lens: _Lens, geom: int, scale: float = 1.0, flat: bool = False
    ) -> np.ndarray:
        """Points [P, 3] in the world whose hull, once projected, is the solid's silhouette."""
        kind, size = self._model.geom_type[geom], self._model.geom_size[geom]
        centre, turn = data.geom_xpos[geom], data.geom_xmat[geom].reshape(3, 3)
        if kind in (SPHERE, CAPSULE):
            # A ball's rim faces the eye; that of its shadow lies on the ground.
            sides = np.eye(3)[:2] if flat else np.stack((lens.right, lens.up))
            rim = scale * size[0] * np.stack((np.cos(CIRCLE), np.sin(CIRCLE)), axis=1) @ sides
            ends = (size[1] * turn[:, 2],) if kind == CAPSULE else (np.zeros(3),)
            return np.concatenate([centre + sign * end + rim for end in ends for sign in (1, -1)])
        return centre + self._local_points(kind, size, geom) @ turn.T

    def _local_points(self, kind: int, size: np.ndarray, geom: int) -> np.ndarray:
        cos, sin = np.cos(CIRCLE), np.sin(CIRCLE)
        if kind == CYLINDER:
            rim = np.stack((size[0] * cos, size[0] * sin, np.full_like(cos, size[1])), axis=1)
            return np.concatenate((rim, rim * (1, 1, -1)))
        if kind == ELLIPSOID:
            heights = np.linspace(-np.pi / 2, np.pi / 2, 9)
            ring = np.stack((cos, sin, np.zeros_like(cos)), axis=1)
            pole = np.array((0, 0, 1.0))
            return size * np.concatenate([math.cos(h) * ring + math.sin(h) * pole for h in heights])
        middle, half = self._model.geom_aabb[geom, :3], self._model.geom_aabb[geom, 3:]
        return middle + half * _CORNERS

    def _faces(self, data: Any, geom: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each side of a box as its corners [4, 3] and its outward normal."""
        centre, turn = data.geom_xpos[geom], data.geom_xmat[geom].reshape(3, 3)
        corners = centre + self._model.geom_size[geom] * _CORNERS @ turn.T
        return [
            (corners[_CORNERS[:, axis] == sign], sign * turn[:, axis])
            for axis in range(3)
            for sign in (-1, 1)
        ]


_CORNERS = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=float)


class _Lens:
    """Perspective projection into pixels."""

    def __init__(self, view: View, width: int, height: int):
        self.right, self.up, self.forward = view.frame()
        self.lookat, self.distance = view.lookat, view.distance
        self.eye = view.lookat - view.distance * self.forward
        self.focal = height / 2 / math.tan(math.radians(view.fovy / 2))
        self._middle = np.array((width / 2, height / 2))

    def project(self, points: np.ndarray) -> np.ndarray:
        """[P, 3] in the world to [Q, 2] in pixels; what lies behind the eye is left out."""
        offset = points - self.eye
        depth = offset @ self.forward
        offset, depth = offset[depth > NEAR], depth[depth > NEAR, None]
        flat = np.stack((offset @ self.right, -(offset @ self.up)), axis=1)
        return self._middle + self.focal * flat / depth


def sky(width: int, height: int) -> np.ndarray:
    """A backdrop [height, width, 3], paler towards the ground."""
    share = np.linspace(0, 1, height)[:, None, None]
    column = (1 - share) * SKY_TOP + share * SKY_LOW  # [height, 1, 3]
    return np.ascontiguousarray(np.broadcast_to(column, (height, width, 3)).astype(np.uint8))


def _draw_floor(pen: Any, lens: _Lens, ground: float, width: int, height: int) -> None:
    """Ground up to the horizon, with tiles fixed to the world so that motion shows."""
    tilt = -lens.forward[2]  # sine of the angle below the horizon
    horizon = height / 2 - lens.focal * tilt / max(math.sqrt(1 - tilt**2), 1e-6)
    pen.rectangle((0, max(horizon, 0), width, height), fill=_rgb(FLOOR))
    side = 2.0 ** round(math.log2(lens.distance / 5))
    start = np.floor(lens.lookat[:2] / side).astype(int)
    square = np.array(((0, 0), (1, 0), (1, 1), (0, 1)))
    for i in range(-TILES, TILES + 1):
        for j in range(-TILES, TILES + 1):
            if (start[0] + i + start[1] + j) % 2:
                continue
            tile = side * (square + start + np.array((i, j)))
            corners = np.column_stack((tile, np.full(4, ground)))
            pixels = lens.project(corners)
            haze = min(math.hypot(i, j) / TILES, 1.0)
            if len(pixels) == 4:
                pen.polygon(list(map(tuple, pixels)), fill=_rgb(haze * FLOOR + (1 - haze) * TILE))


def _fill(pen: Any, pixels: np.ndarray, fill: Any, edge: Any = None, width: int = 0) -> None:
    """The convex hull of the pixels [Q, 2]."""
    from scipy.spatial import ConvexHull, QhullError  # not for every command that imports this

    try:
        hull = pixels[ConvexHull(pixels).vertices]
    except (QhullError, ValueError):  # a line, or nothing before the eye
        return
    pen.polygon(list(map(tuple, hull)), fill=fill, outline=edge, width=width)


def _rgb(colour: np.ndarray) -> tuple[int, ...]:
    return tuple(int(c) for c in np.clip(colour, 0, 255))
