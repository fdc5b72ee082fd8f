"""config.json as strangers write it: bounds, kinds, nulls, moved fields."""

import time

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.models import huggingface_config
from rl_tpu.models import huggingface_families
from rl_tpu.models import huggingface_fields
from tests.models import huggingface_config_test

_LLAMA3 = dict(
    rope_type='llama3',
    factor=8,
    low_freq_factor=1,
    high_freq_factor=4,
    original_max_position_embeddings=8192,
)
_FULL, _SLIDING = 'full_attention', 'sliding_attention'


def _nested(**full):
  return {_FULL: full, _SLIDING: {'rope_type': 'default'}}


class OddConfigTest(parameterized.TestCase):

  @parameterized.parameters(
      *((name, value) for name in (
          'num_hidden_layers', 'hidden_size', 'vocab_size',
          'max_position_embeddings', 'num_attention_heads', 'head_dim',
          'intermediate_size', 'num_key_value_heads',
      ) for value in (10**18, -1, 0, 4.0, True, '4', [4])),
      ('num_hidden_layers', 10**6),
      ('num_hidden_layers', None),
      ('max_position_embeddings', None),
      ('rms_norm_eps', None),
      ('rms_norm_eps', 0),
      ('rms_norm_eps', -1e-5),
      ('rms_norm_eps', '1e-5'),
      ('rope_theta', None),
      ('rope_theta', -1e4),
      ('tie_word_embeddings', 'false'),
      ('tie_word_embeddings', None),
      ('hidden_act', None),
      ('hidden_act', ['silu']),
      ('layer_types', [['full_attention']]),
      ('model_type', ['llama']),
      ('model_type', None),
  )
  def test_K54_numbers_have_bounds_and_fields_have_kinds(self, name, value):
    begun = time.monotonic()
    with self.assertRaisesRegex(ValueError, f'^config.json: {name}') as caught:
      huggingface_config_test.read('llama', **{name: value})
    self.assertLess(time.monotonic() - begun, 1.0)
    self.assertLess(len(str(caught.exception)), 200)

  @parameterized.parameters(
      ('factor', None), ('factor', 0), ('factor', '8'),
      ('low_freq_factor', 4), ('original_max_position_embeddings', None),
      ('original_max_position_embeddings', 10**18), ('rope_type', None),
      ('rope_type', ['llama3']), ('rope_theta', None), ('type', 'linear'),
      ('partial_rotary_factor', 2), ('partial_rotary_factor', None),
  )
  def test_K54_members_of_the_rotation_have_kinds(self, name, value):
    for where in ('rope_scaling', 'rope_parameters'):
      other = {'rope_scaling': None, 'rope_parameters': None}
      given = other | {where: _LLAMA3 | {name: value}}
      with self.assertRaisesRegex(ValueError, f'{where}.*{name}'):
        huggingface_config_test.read('llama', **given)

  @parameterized.parameters(
      ('qwen3_moe', 'num_experts', 10**9, 'num_experts'),
      ('glm4_moe', 'n_routed_experts', None, 'n_routed_experts'),
      ('glm4_moe', 'norm_topk_prob', 'no', 'norm_topk_prob'),
      ('glm4_moe', 'partial_rotary_factor', None, 'partial_rotary_factor'),
      ('gemma3_text', 'sliding_window_pattern', 0, 'sliding_window_pattern'),
      ('gemma3_text', 'sliding_window', None, 'sliding_window'),
      ('gemma3_text', 'rope_local_base_freq', None, 'rope_local_base_freq'),
      ('gemma2', 'query_pre_attn_scalar', -1, 'query_pre_attn_scalar'),
      ('qwen3', 'head_dim', None, 'head_dim'),
      ('qwen3', 'use_sliding_window', 'no', 'use_sliding_window'),
  )
  def test_K54_in_every_family(self, kind, name, value, line):
    with self.assertRaisesRegex(ValueError, f'^config.json: {line}'):
      huggingface_config_test.read(kind, **{name: value})

  def test_K54_no_more_experts_than_a_folder_can_name(self):
    with self.assertRaisesRegex(ValueError, '16777216 in all'):
      huggingface_config_test.read(
          'qwen3_moe', num_hidden_layers=1024, num_experts=2**14
      )

  def test_K54_every_field_that_is_read_has_a_kind(self):
    read = set(huggingface_config._COMMON)
    for family in huggingface_families.FAMILIES.values():
      read |= {*family.fields, *family.defaults}
    self.assertEqual(read - set(huggingface_fields.KINDS), set())

  @parameterized.parameters({}, {'rope_theta': 1e6})
  def test_K51_the_base_stands_in_the_dictionary(self, **other):
    for where in ('rope_scaling', 'rope_parameters'):
      given = {'rope_theta': 5e5, **other, 'rope_scaling': None}
      given |= {where: {**_LLAMA3, 'rope_theta': 500000}}
      config = huggingface_config_test.read('llama', **given)
      self.assertEqual(config.rope_theta, 500000)
      self.assertEqual(dict(config.rope_scaling), _LLAMA3)

  def test_K51_the_base_is_there_and_nowhere_else(self):
    data = dict(
        huggingface_config_test._COMMON, model_type='llama',
        rope_scaling={**_LLAMA3, 'rope_theta': 500000},
    )
    config = huggingface_config.parse(data, 'config.json')
    self.assertEqual(config.rope_theta, 500000)

  # What transformers 5.25 does: the dictionary's share goes before the
  # field's, the field's before the family's half.
  @parameterized.parameters(
      (dict(rope_parameters=dict(partial_rotary_factor=0.25)), 32),
      (dict(rope_scaling=dict(partial_rotary_factor=0.25, rope_theta=5.0)), 32),
      (dict(rope_parameters=dict(rope_theta=5.0)), 64),
      (dict(partial_rotary_factor=1.0), None),
      (dict(partial_rotary_factor=1, rope_parameters=dict(rope_type='default')),
       None),
  )
  def test_K51_the_share_of_a_head(self, change, width):
    for kind in ('glm4', 'glm4_moe'):
      config = huggingface_config_test.read(kind, **change)
      self.assertEqual(config.rotary_width, width)

  @parameterized.parameters('llama', 'qwen2', 'qwen3', 'gemma2', 'qwen3_moe')
  def test_K51_a_share_that_the_family_has_not_is_refused(self, kind):
    for where in ('rope_scaling', 'rope_parameters'):
      with self.assertRaisesRegex(ValueError, 'partial_rotary_factor = 0.5'):
        huggingface_config_test.read(
            kind,
            **{'rope_scaling': None, where: {'partial_rotary_factor': 0.5}},
        )

  @parameterized.parameters(
      ('llama', dict(rope_scaling=_LLAMA3,
                     rope_parameters=dict(rope_type='default')), 'disagree'),
      ('llama', dict(rope_scaling=dict(rope_type='linear', factor=2),
                     rope_parameters=dict(rope_type='linear', factor=4)),
       'disagree'),
      ('llama', dict(rope_parameters=_nested(rope_theta=5.0)), 'by kind of'),
      ('qwen3', dict(rope_parameters=_nested(rope_theta=5.0)), 'by kind of'),
      ('gemma3_text', dict(rope_parameters=dict(rope_theta=5.0)),
       'for all layers'),
      ('gemma3_text', dict(rope_parameters={
          **_nested(rope_theta=5.0), 'rope_theta': 6.0}), 'for all layers'),
      ('gemma3_text', dict(rope_parameters={_SLIDING: dict(
          partial_rotary_factor=0.5)}), 'sliding_attention'),
      ('gemma3_text', dict(rope_scaling=dict(rope_type='linear', factor=8.0),
                           rope_parameters=_nested(rope_type='default')),
       'disagree'),
      ('gemma2', dict(hidden_act='silu'), 'hidden_activation .* hidden_act'),
      ('qwen3_moe', dict(num_local_experts=8), 'num_experts .*disagree'),
      ('qwen3', dict(use_sliding_window=False, layer_types=[_SLIDING] * 12),
       'use_sliding_window is false'),
      ('llama', dict(hidden_size=65), 'no multiple'),
  )
  def test_K51_two_places_that_disagree_are_refused(self, kind, change, line):
    with self.assertRaisesRegex(ValueError, f'^config.json: .*{line}'):
      huggingface_config_test.read(kind, **change)

  def test_K51_rotations_by_kind_of_layer(self):
    given = {
        _FULL: dict(rope_type='linear', factor=8.0, rope_theta=2e6),
        _SLIDING: dict(rope_type='default', rope_theta=3e4),
    }
    config = huggingface_config_test.read(
        'gemma3_text', rope_scaling=None, rope_parameters=given
    )
    self.assertEqual(config.rope_theta, 2e6)
    self.assertEqual(config.local_rope_theta, 3e4)
    self.assertEqual(config.rope_scaling['factor'], 8.0)

  # Absent fields, as transformers 5.25 fills them in.
  @parameterized.parameters(
      ('llama', 4, 2048), ('qwen2', 32, 32768), ('qwen3', 32, 32768),
      ('gemma2', 4, 8192), ('gemma3_text', 4, 131072), ('glm4', 2, 131072),
      ('qwen3_moe', 4, 32768), ('glm4_moe', 8, 131072),
  )
  def test_K51_absent_fields_are_the_family_s(self, kind, heads, length):
    data = {**huggingface_config_test._COMMON, 'model_type': kind,
            **huggingface_config_test._OLDER[kind][0],
            'num_attention_heads': 32 if heads > 4 else 4}
    del data['num_key_value_heads'], data['max_position_embeddings']
    config = huggingface_config.parse(data, 'config.json')
    self.assertEqual(config.num_kv_heads, heads)
    self.assertEqual(config.max_length, length)


if __name__ == '__main__':
  absltest.main()
