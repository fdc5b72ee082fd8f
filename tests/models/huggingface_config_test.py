"""config.json of the families as they are published, and refusals."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.models import config as config_lib
from rl_tpu.models import huggingface_config
from tests.models import parity
from tests.models import parity_models

_COMMON = dict(
    architectures=['X'],
    attention_dropout=0.0,
    bos_token_id=1,
    eos_token_id=[2, 3],
    hidden_act='silu',
    hidden_size=64,
    initializer_range=0.02,
    intermediate_size=128,
    max_position_embeddings=4096,
    num_attention_heads=4,
    num_hidden_layers=12,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    torch_dtype='bfloat16',
    transformers_version='4.50.0',
    use_cache=True,
    vocab_size=100,
)
_GEMMA = dict(
    cache_implementation='hybrid',
    head_dim=256,
    hidden_act='gelu_pytorch_tanh',
    hidden_activation='gelu_pytorch_tanh',
    query_pre_attn_scalar=144,
)
# As exports before transformers 5 have it, with the settings it stands for.
_OLDER = {
    'llama': (
        dict(
            attention_bias=False,
            mlp_bias=False,
            pretraining_tp=1,
            rope_theta=5e5,
            rope_scaling=dict(
                factor=32.0,
                high_freq_factor=4.0,
                low_freq_factor=1.0,
                original_max_position_embeddings=8192,
                rope_type='llama3',
            ),
            tie_word_embeddings=True,
        ),
        dict(rope_theta=5e5, head_width=16, tie_embeddings=True),
    ),
    'qwen2': (
        dict(
            max_window_layers=4,
            rope_theta=1e6,
            sliding_window=131072,
            use_mrope=False,
            use_sliding_window=False,
        ),
        dict(qkv_bias=True, local_layers=(), window=None, head_width=16),
    ),
    'qwen3': (
        dict(
            attention_bias=False,
            max_window_layers=10,
            rope_scaling=None,
            rope_theta=1e6,
            sliding_window=16,
            use_sliding_window=True,
        ),
        # The width of a head is 128 where the family's file does not say it.
        dict(qk_norm=True, local_layers=(10, 11), window=16, head_width=128),
    ),
    'gemma2': (
        dict(
            _GEMMA,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
            sliding_window=4096,
            sliding_window_size=4096,
        ),
        dict(
            norm_offset=True,
            post_norms=True,
            embed_scale=True,
            tie_embeddings=True,
            query_scalar=144,
            attention_softcap=50.0,
            logit_softcap=30.0,
            local_layers=(0, 2, 4, 6, 8, 10),
            window=4096,
            rope_theta=1e4,
            local_rope_theta=None,
        ),
    ),
    'gemma3_text': (
        dict(
            _GEMMA,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            rope_local_base_freq=10000,
            rope_scaling=dict(factor=8.0, rope_type='linear'),
            rope_theta=1000000,
            sliding_window=512,
            sliding_window_pattern=6,
        ),
        dict(
            qk_norm=True,
            attention_softcap=None,
            logit_softcap=None,
            local_layers=(0, 1, 2, 3, 4, 6, 7, 8, 9, 10),
            window=512,
            rope_theta=1e6,
            rope_scaling=dict(rope_type='linear', factor=8.0),
            local_rope_theta=1e4,
        ),
    ),
    'glm4': (
        dict(
            attention_bias=True,
            head_dim=128,
            partial_rotary_factor=0.5,
            rope_theta=10000.0,
        ),
        dict(
            post_norms=True,
            qkv_bias=True,
            rotary_width=64,
            rotary_interleaved=True,
        ),
    ),
    'qwen3_moe': (
        dict(
            attention_bias=False,
            decoder_sparse_step=1,
            head_dim=128,
            max_window_layers=48,
            mlp_only_layers=[],
            moe_intermediate_size=32,
            norm_topk_prob=True,
            num_experts=16,
            num_experts_per_tok=4,
            output_router_logits=False,
            router_aux_loss_coef=0.001,
            sliding_window=None,
            use_sliding_window=False,
        ),
        dict(
            qk_norm=True,
            mixture=config_lib.MixtureConfig(
                num_experts=16, experts_per_token=4, expert_width=32
            ),
        ),
    ),
    'glm4_moe': (
        dict(
            attention_bias=True,
            first_k_dense_replace=3,
            head_dim=128,
            moe_intermediate_size=32,
            n_group=1,
            n_routed_experts=16,
            n_shared_experts=2,
            norm_topk_prob=True,
            num_experts_per_tok=4,
            num_nextn_predict_layers=1,
            partial_rotary_factor=0.5,
            rope_scaling=None,
            rope_theta=1000000,
            routed_scaling_factor=2.5,
            topk_group=1,
            use_qk_norm=True,
        ),
        dict(
            qkv_bias=True,
            qk_norm=True,
            rotary_width=64,
            rotary_interleaved=False,
            mixture=config_lib.MixtureConfig(
                num_experts=16,
                experts_per_token=4,
                expert_width=32,
                router='sigmoid',
                scale=2.5,
                shared_width=64,
                leading_dense=3,
            ),
        ),
    ),
}


def read(kind: str, **changes) -> config_lib.DecoderConfig:
  """Settings of a published file with changes; None takes a field out."""
  data = {**_COMMON, 'model_type': kind, **_OLDER[kind][0], **changes}
  return huggingface_config.parse(data, 'config.json')


class HuggingfaceConfigTest(parameterized.TestCase):

  @parameterized.parameters(*_OLDER)
  def test_older_files(self, kind):
    config = read(kind)
    for name, value in _OLDER[kind][1].items():
      self.assertEqual(getattr(config, name), value, name)

  @parameterized.parameters(*parity.KINDS)
  def test_what_is_written_is_read_back(self, kind):
    # transformers' own file, and the file that stands for the same settings.
    data = parity_models.golden_json(kind)['config']
    config = huggingface_config.parse(data, 'config.json')
    again = huggingface_config.render(config)
    self.assertEqual(again['model_type'], kind)
    self.assertEqual(again['architectures'], data['architectures'])
    self.assertEqual(huggingface_config.parse(again, 'config.json'), config)
    rope = {k: v for k, v in again['rope_parameters'].items() if v is not None}
    self.assertEqual(rope, data['rope_parameters'])

  @parameterized.parameters(
      ('llama', dict(clip_qkv=8), 'clip_qkv = 8 is not understood'),
      ('llama', dict(attention_bias=True), 'attention_bias = True'),
      ('llama', dict(sliding_window_pattern=3), 'sliding_window_pattern'),
      ('llama', dict(final_logit_softcapping=30.0), 'final_logit_softcapping'),
      ('llama', dict(attention_dropout=0.1), 'attention_dropout = 0.1'),
      ('llama', dict(num_experts=8), 'num_experts'),
      ('qwen3', dict(layer_types=['chunked_attention'] * 12), 'chunked'),
      ('qwen3', dict(layer_types=['full_attention']), '12 layers'),
      ('gemma3_text', dict(attn_logit_softcapping=50.0), 'attn_logit'),
      ('gemma2', dict(use_bidirectional_attention=True), 'bidirectional'),
      ('qwen3_moe', dict(decoder_sparse_step=2), 'decoder_sparse_step = 2'),
      ('qwen3_moe', dict(mlp_only_layers=[0]), 'mlp_only_layers'),
      ('glm4_moe', dict(n_group=5), 'num_groups'),
      ('llama', dict(rope_scaling=dict(rope_type='linear')), 'factor'),
      (
          'llama',
          dict(rope_scaling=dict(rope_type='default', mrope_section=[1])),
          'mrope_section',
      ),
      (
          'gemma3_text',
          dict(
              rope_parameters=dict(
                  sliding_attention=dict(rope_type='linear', factor=2.0)
              )
          ),
          'sliding_attention',
      ),
  )
  def test_what_matters_and_is_not_covered_is_refused(self, kind, change, line):
    with self.assertRaisesRegex(ValueError, f'config.json: .*{line}'):
      read(kind, **change)

  def test_a_field_that_is_null_says_nothing(self):
    self.assertEqual(read('llama', clip_qkv=None), read('llama'))

  def test_absent_fields_of_gemma_are_the_family_s(self):
    config = read(
        'gemma2', attn_logit_softcapping=None, final_logit_softcapping=None
    )
    self.assertIsNone(config.attention_softcap)
    data = {**_COMMON, 'model_type': 'gemma2'}
    config = huggingface_config.parse(data, 'config.json')
    self.assertEqual(config.attention_softcap, 50.0)
    self.assertEqual(config.logit_softcap, 30.0)
    self.assertEqual(config.head_width, 256)
    self.assertTrue(config.tie_embeddings)


if __name__ == '__main__':
  absltest.main()
