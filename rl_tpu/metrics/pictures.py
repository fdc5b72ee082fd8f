"""Small line charts as pixels, for curves that are no series over updates."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from PIL import Image
from PIL import ImageDraw

from rl_tpu.metrics import diagnostics
from rl_tpu.metrics import value_curves

WIDTH, HEIGHT = 480, 320
_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 28, 12, 36
_BLUE, _ORANGE, _GREY = (31, 119, 180), (217, 95, 14), (160, 160, 160)
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
  """One line of a chart; places where x or y is not finite are left out.

  Attributes:
    name: shown in the legend.
    x: [n] places.
    y: [n] heights.
    colour: red, green, blue of 0 to 255.
    low: [n] lower edge of the interval; None draws none.
    high: [n] upper edge.
  """

  name: str
  x: np.ndarray
  y: np.ndarray
  colour: tuple[int, int, int]
  low: np.ndarray | None = None
  high: np.ndarray | None = None


def chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    x_range: tuple[float, float] | None = None,
) -> np.ndarray:
  """uint8 [HEIGHT, WIDTH, 3] with axes, legend and intervals.

  Args:
    lines: what is drawn, the first at the bottom.
    x_label: under the chart.
    y_label: above its left edge.
    x_range: ends of the horizontal axis; None is that of the lines.
  """
  image = Image.new('RGB', (WIDTH, HEIGHT), _WHITE)
  draw = ImageDraw.Draw(image)
  xs = [line.x for line in lines]
  ys = [e for l in lines for e in (l.y, l.low, l.high) if e is not None]
  x_range = x_range or _range(xs)
  y_range = _range(ys)
  right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM

  def place(x: float, y: float) -> tuple[float, float]:
    across = (x - x_range[0]) / (x_range[1] - x_range[0])
    up = (y - y_range[0]) / (y_range[1] - y_range[0])
    return _LEFT + across * (right - _LEFT), bottom - up * (bottom - _TOP)

  draw.rectangle((_LEFT, _TOP, right, bottom), outline=_GREY)
  for end in x_range:
    draw.text((place(end, y_range[0])[0], bottom + 4), f'{end:.3g}', _BLACK,
              anchor='mt')
  for end in y_range:
    draw.text((_LEFT - 4, place(x_range[0], end)[1]), f'{end:.3g}', _BLACK,
              anchor='rm')
  draw.text(((_LEFT + right) / 2, HEIGHT - 4), x_label, _BLACK, anchor='mb')
  draw.text((_LEFT, 4), y_label, _BLACK, anchor='lt')
  legend = right
  for line in lines:
    _draw(draw, line, place)
    draw.text((legend, 4), line.name, line.colour, anchor='rt')
    legend -= draw.textlength(line.name) + 12
  return np.asarray(image)


def _draw(draw: ImageDraw.ImageDraw, line: Line, place) -> None:
  whole = np.isfinite(line.x) & np.isfinite(line.y)
  points = [place(x, y) for x, y in zip(line.x[whole], line.y[whole])]
  if len(points) > 1:
    draw.line(points, fill=line.colour, width=2)
  for across, up in points:
    draw.ellipse((across - 3, up - 3, across + 3, up + 3), fill=line.colour)
  if line.low is None:
    return
  for x, low, high in zip(line.x, line.low, line.high):
    if np.isfinite([x, low, high]).all():
      draw.line((place(x, low), place(x, high)), fill=line.colour, width=1)


def _range(columns: Sequence[np.ndarray]) -> tuple[float, float]:
  values = np.concatenate([np.asarray(c, np.float64) for c in columns] or [[]])
  values = values[np.isfinite(values)]
  if not values.size:
    return 0.0, 1.0
  low, high = float(values.min()), float(values.max())
  margin = 0.05 * (high - low) or 0.5
  return low - margin, high + margin


def calibration(curve: diagnostics.Calibration) -> np.ndarray:
  """C5: mean return over mean prediction, by token and by rollout."""
  number = lambda name: np.asarray(
      [np.nan if (v := getattr(b, name)) is None else v for b in curve.bins],
      np.float64,
  )
  token = Line('tokens', number('mean_value'), number('mean_return'), _BLUE)
  rollout = Line(
      'rollouts',
      number('mean_value_rollout'),
      number('mean_return_rollout'),
      _ORANGE,
  )
  ends = np.asarray(_range([token.x, rollout.x]))
  return chart(
      [Line('perfect', ends, ends, _GREY), token, rollout],
      x_label='mean predicted value',
      y_label='mean return',
  )


def matched(found: value_curves.Matched) -> np.ndarray:
  """C6: the value curves of matched successes and failures."""
  middle = (np.arange(diagnostics.POSITION_BINS) + 0.5) / (
      diagnostics.POSITION_BINS
  )
  lines = [
      Line(name, middle, band.mean, colour, band.low, band.high)
      for name, band, colour in (
          ('failure', found.failure, _ORANGE),
          ('success', found.success, _BLUE),
      )
  ]
  return chart(
      lines,
      x_label='place in the rollout (j / N)',
      y_label=f'mean value, {found.pairs} pairs',
      x_range=(0.0, 1.0),
  )
