"""O10: what is idle waits at the host, and no number changes."""

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest

from rl_tpu.config import schema
from tests.learner import small

HOST = schema.MemoryConfig(
    optimizers='host', critic='host', reference='host'
)


def kinds(tree) -> set[str]:
  """Memories that the arrays of a tree are in."""
  return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)}


class ResidenceTest(absltest.TestCase):

  def trained(self, memory):
    """State, learner and report after an update on eight devices."""
    learner = small.learner(8, memory=memory)
    state = learner.init_state(small.params(), with_critic=True)
    reference = learner.residence.store(
        'reference', jax.tree.map(jnp.copy, state.policy_params)
    )
    updater = small.updater(
        learner, kl=schema.KlConfig(in_='loss', coef=0.1), reference=reference
    )
    state, report = small.step(updater, state, small.batch())
    return learner, state, reference, report

  def test_O10_the_same_update_and_the_same_shards(self):
    _, plain, _, _ = self.trained(schema.MemoryConfig())
    learner, state, reference, _ = self.trained(HOST)
    self.assertEqual(kinds(plain), {'device'})
    self.assertEqual(kinds(state.actor.params), {'device'})
    self.assertEqual(kinds(state.actor.optimizer), {'pinned_host'})
    self.assertEqual(kinds(state.critic), {'pinned_host'})
    self.assertEqual(kinds(reference), {'pinned_host'})
    jax.tree.map(np.testing.assert_array_equal, plain, state)
    jax.tree.map(
        lambda a, b: self.assertEqual(a.sharding.spec, b.sharding.spec),
        plain.critic,
        state.critic,
    )
    self.assertGreater(learner.residence.take_moved(), 0)
    self.assertEqual(learner.residence.take_moved(), 0)

  def test_O10_what_is_moved_is_counted(self):
    learner, state, reference, _ = self.trained(HOST)
    size = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    moments = size(state.actor.optimizer) + size(state.critic.optimizer)
    critic, reference = size(state.critic.params), size(reference)
    # To the host at the start; then moments go and come in one step each, the
    # critic for its values and for its step, the reference once.
    expected = 3 * moments + (1 + 1 + 2) * critic + (1 + 1) * reference
    self.assertEqual(learner.residence.take_moved(), expected)


if __name__ == '__main__':
  absltest.main()
