"""L8 to L11, L20, G15, G23: random irregular minibatches against plain loops.

Each example is cut into 1, 2 and 4 microbatches, on one device and sharded
over eight, with NaN and inf wherever nothing may be read. Total and gradient
have to be those of `losses.reference`, which knows no arrays.
"""

import functools

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.config import schema
from rl_tpu.learner import passes
from rl_tpu.losses import aggregation
from rl_tpu.losses import objective
from rl_tpu.sharding import mesh as mesh_lib
from rl_tpu.sharding import rules
from rl_tpu.types import batch as batch_lib
from tests import golden_io
from tests.losses import reference

ROWS, LENGTH, TABLE = 8, 5, 16
JUNK = (np.nan, np.inf, -np.inf, 1e30, 0.0)
DIS = schema.DisConfig(0.5, 1.0)
GSPO = schema.GspoConfig(0.1, 0.15)
SETTINGS = {
    'ppo': objective.Settings(
        loss=schema.LossConfig(aggregation='task_rollout_mean')
    ),
    'dis': objective.Settings(
        policy=schema.PolicyConfig(loss='dis'), dis=DIS,
        loss=schema.LossConfig(aggregation='token', renormalise_gated=True),
    ),
    'gspo': objective.Settings(
        policy=schema.PolicyConfig(loss='gspo', correction='tis'), gspo=GSPO,
        loss=schema.LossConfig(aggregation='rollout_mean'),
    ),
    'icepop': objective.Settings(
        policy=schema.PolicyConfig(correction='icepop'),
        loss=schema.LossConfig(aggregation='task_mean', renormalise_gated=True),
    ),
    'seq_mis': objective.Settings(
        policy=schema.PolicyConfig(
            loss='cispo', correction='seq_mis', is_low=0.8, is_high=1.25
        ),
        cispo=schema.CispoConfig(0.5),
        loss=schema.LossConfig(aggregation='constant', constant=7.0),
    ),
}


@st.composite
def minibatches(draw) -> list[list[reference.Token]]:
  """Rows of tokens: one segment a row, some rows empty, some tokens masked."""
  rows, rollout, task = [], 0, 0
  # Numbers on a grid, none of them at a threshold.
  number = st.integers(-8, 8).map(lambda n: 0.11 * n + 0.003)
  for row in range(ROWS):
    # The next segment goes on with the rollout, or starts another one of the
    # same task or of another.
    if row:
      step = draw(st.sampled_from((0, 0, 1, 2)))
      rollout, task = rollout + (step > 0), task + (step == 2)
    tokens = []
    for _ in range(draw(st.integers(0, LENGTH))):
      base, move, gap = (draw(number) for _ in range(3))
      base -= 2.0
      tokens.append(
          reference.Token(
              segment=row, rollout=rollout, task=task, mask=draw(st.booleans()),
              logp=base + move, base=base, behaviour=base - gap,
              advantage=draw(number),
          )
      )
    rows.append(tokens)
  return rows


def grid(rows, value, junk) -> np.ndarray:
  """[B, T] of the trained tokens' values, junk where nothing may be read."""
  out = np.resize(np.asarray(junk, np.float32), (ROWS, LENGTH))
  for row, tokens in enumerate(rows):
    for place, token in enumerate(tokens):
      if token.mask:
        out[row, place] = value(token)
  return out


def origin(rows) -> batch_lib.Origin:
  rollout_N, task_R = (np.full(TABLE, -1, np.int32) for _ in range(2))
  for tokens in rows:
    for token in tokens:
      rollout_N[token.segment] = token.rollout
      task_R[token.rollout] = token.task
  return batch_lib.Origin(rollout_N, task_R)


def weights_of(rows, settings) -> np.ndarray:
  """The host's weights of the whole minibatch."""
  column = lambda value, fill: grid(rows, value, [fill]).astype(np.int64)
  mask_BT = grid(rows, lambda t: 1.0, [0.0]) > 0
  return aggregation.weights(
      mask_BT,
      segment=column(lambda t: t.segment, 0),
      rollout=column(lambda t: t.rollout, 0),
      task=column(lambda t: t.task, 0),
      mode=settings.loss.aggregation,
      constant=settings.loss.constant,
  )


@functools.cache
def programs(name: str, devices: int):
  """Plan of a minibatch, and loss and gradient of a microbatch."""
  settings = SETTINGS[name]
  mesh = mesh_lib.make_mesh(schema.MeshConfig(), jax.devices()[:devices])

  def loss(logp_BT, part):
    zero_BT = jnp.zeros_like(logp_BT)
    return objective.actor_terms(logp_BT, zero_BT, part, settings=settings)[0]

  plan = jax.jit(
      functools.partial(passes.plan, settings=settings),
      out_shardings=rules.rows_sharding(mesh),
  )
  return mesh, plan, jax.jit(jax.value_and_grad(loss))


def run(name, rows, cut, devices, junk):
  """Total and gradient of a minibatch cut into microbatches.

  Args:
    name: of the settings.
    rows: the tokens.
    cut: microbatch of every row.
    devices: that the rows are sharded over.
    junk: what stands where nothing may be read.
  """
  settings = SETTINGS[name]
  mesh, plan, gradient_of = programs(name, devices)
  place = lambda tree: jax.device_put(tree, rules.rows_sharding(mesh))
  weight_BT = weights_of(rows, settings)
  segment_BT = np.full((ROWS, LENGTH), -1, np.int32)
  for row, tokens in enumerate(rows):
    segment_BT[row, : len(tokens)] = row
  table = jax.device_put(origin(rows), rules.replicated(mesh))
  columns = [
      grid(rows, value, junk)
      for value in (
          lambda t: t.logp, lambda t: t.base, lambda t: t.behaviour,
          lambda t: t.advantage,
      )
  ]
  parts, logps = [], []
  for index in range(max(cut) + 1):
    # A microbatch is as long as any other: rows of others are padding.
    here = np.asarray([c == index for c in cut])[:, None]
    poison = np.resize(np.asarray(junk, np.float32), (ROWS, LENGTH))
    logp_BT, base_BT, behaviour_BT, advantage_BT = (
        np.where(here, column, poison) for column in columns
    )
    mine_BT = np.where(here, weight_BT, 0.0).astype(np.float32)
    ids_BT = np.where(here, segment_BT, -1).astype(np.int32)
    parts.append(
        place(
            batch_lib.Minibatch(
                rows=batch_lib.Rows(
                    ids_BT, ids_BT, ids_BT, mine_BT > 0, behaviour_BT
                ),
                advantage_BT=advantage_BT,
                return_BT=poison,
                value_BT=poison,
                base_logp_BT=base_BT,
                reference_logp_BT=poison,
                policy_weight_BT=mine_BT,
                critic_weight_BT=np.zeros_like(mine_BT),
            )
        )._replace(origin=table)
    )
    logps.append(place(logp_BT))
  if passes.needed(settings):
    plans = plan(tuple(parts), tuple(logps))
    parts = [p._replace(plan=found) for p, found in zip(parts, plans)]
  total, slope_BT = 0.0, np.zeros((ROWS, LENGTH))
  for logp_BT, part in zip(logps, parts):
    loss, gradient_BT = gradient_of(logp_BT, part)
    total += float(loss)
    slope_BT += np.asarray(gradient_BT)
  return total, slope_BT


class ObjectivePropertiesTest(parameterized.TestCase):

  @parameterized.parameters(
      *((name, parts, devices) for name in SETTINGS
        for parts, devices in ((1, 1), (2, 8), (4, 8)))
  )
  def test_L8_L9_L10_L20_G23_against_plain_loops(self, name, parts, devices):
    @hypothesis.settings(max_examples=8, deadline=None)
    @hypothesis.given(minibatches(), st.permutations(JUNK), st.data())
    def check(rows, junk, data):
      cut = [
          data.draw(st.integers(0, parts - 1)) for _ in range(ROWS - 1)
      ] + [parts - 1]
      total, slope_BT = run(name, rows, cut, devices, junk)
      tokens = [token for row in rows for token in row]
      want, slopes = reference.objective(tokens, SETTINGS[name])
      golden_io.assert_close(total, want)
      mask_BT = grid(rows, lambda t: 1.0, [0.0]) > 0
      trained = [s for s, t in zip(slopes, tokens) if t.mask]
      golden_io.assert_close(slope_BT[mask_BT], trained)
      np.testing.assert_array_equal(slope_BT[~mask_BT], 0.0)

    check()

  @parameterized.parameters(*SETTINGS)
  def test_L9_nothing_trained_is_exactly_0(self, name):
    rows = [
        [reference.Token(r, r, r, False, 0.0, 0.0, 0.0, 0.0)] * 3
        for r in range(ROWS)
    ]
    for cut in ([0] * ROWS, [0, 1] * (ROWS // 2)):
      total, slope_BT = run(name, rows, cut, 8, JUNK)
      self.assertEqual(total, 0.0)
      np.testing.assert_array_equal(slope_BT, 0.0)

  @parameterized.parameters('dis', 'icepop')
  def test_L10_everything_gated_is_exactly_0(self, name):
    # Ratio and gap of e^2: out of every range.
    rows = [
        [reference.Token(r, r, r, True, -1.0, -1.0, -3.0, 1.0)] * 2
        for r in range(ROWS)
    ]
    total, slope_BT = run(name, rows, [0, 1] * (ROWS // 2), 8, JUNK)
    self.assertEqual(total, 0.0)
    np.testing.assert_array_equal(slope_BT, 0.0)


class CutsTest(parameterized.TestCase):

  @parameterized.parameters(*aggregation.MODES)
  def test_L11_a_cut_and_an_order_change_no_weight(self, mode):
    @hypothesis.settings(max_examples=30, deadline=None)
    @hypothesis.given(minibatches(), st.data())
    def check(rows, data):
      tokens = [token for row in rows for token in row]
      hypothesis.assume(any(token.mask for token in tokens))
      keys = {}
      # Every segment is cut at a place of its own, the tail is a new one.
      for row, members in enumerate(rows):
        at = data.draw(st.integers(0, len(members)))
        for place in range(len(members)):
          keys[row, place] = row + (ROWS if place >= at else 0)
      places = [(r, p) for r, row in enumerate(rows) for p in range(len(row))]
      cut = [keys[place] for place in places]
      order = data.draw(st.permutations(range(len(tokens))))
      column = lambda name: np.asarray([getattr(t, name) for t in tokens])
      weigh = lambda segment, order: aggregation.weights(
          column('mask')[order], segment=np.asarray(segment)[order],
          rollout=column('rollout')[order], task=column('task')[order],
          mode=mode, constant=5.0,
      )
      order = np.asarray(order)
      whole = weigh(column('segment'), np.arange(len(tokens)))
      want = reference.weights(tokens, [t.mask for t in tokens], mode, 5.0)
      np.testing.assert_allclose(whole, want, rtol=1e-6)
      found = weigh(cut, order)
      if mode != 'segment_mean':
        np.testing.assert_allclose(found, whole[order], rtol=1e-6)
      # Whatever the mode, the weights of a cut batch are those of the loops.
      pieces = [
          reference.Token(**{**vars(t), 'segment': s})
          for t, s in zip(tokens, cut)
      ]
      want = reference.weights(pieces, [t.mask for t in pieces], mode, 5.0)
      np.testing.assert_allclose(found, np.asarray(want)[order], rtol=1e-6)

    check()


if __name__ == '__main__':
  absltest.main()
