"""A world whose steps fail in every way, and which writes down when they do."""

import json
import pathlib
import random
import time

from tests import faulty
from tests.launch import chatter

# Of all steps; the first share is divided evenly over the ways.
FAILING, HANGING = 0.30, 0.05
_TURNS = 2
WAYS = tuple(way for way in dict.fromkeys(faulty.WAYS) if way)


class Unreliable:
  """Chatter of two turns; a third of its steps fail, as the seed decides."""

  spec = chatter.Chatter.spec

  def __init__(self, log: str):
    """Args: folder that gets a file for every fault, before it happens."""
    self._log = pathlib.Path(log)
    self._world = chatter.Chatter(_TURNS)
    self._seed, self._draw = 0, random.Random()

  def reset(self, task, seed):
    self._seed, self._draw = seed, random.Random(seed)
    return self._world.reset(task, seed)

  def instruction(self):
    return self._world.instruction()

  def step(self, action):
    way, place = '', self._draw.random()
    if place < HANGING:
      way = 'hang'
    elif place < HANGING + FAILING:
      way = self._draw.choice([way for way in WAYS if way != 'hang'])
    if way:
      line = {'way': way, 'seed': self._seed, 'time': time.time()}
      # A file each: a worker may be ended while it writes.
      path = self._log / f'{self._seed}-{time.time_ns()}.json'
      path.write_text(json.dumps(line))
    return faulty.befall(
        way, lambda: self._world.step(action), reward='word'
    )

  def evidence(self):
    return self._world.evidence()

  def close(self):
    self._world.close()
