"""Tokenizers over bytes, and the fields of a GGUF file they come from."""

from absl.testing import absltest
from absl.testing import parameterized

from rl_tpu.text import byte_level
from rl_tpu.text import gguf_fields

# GPT-2 writes a space as U+0120 and the bytes of é as U+00C3 U+00A9.
TOKENS = ['<s>', 'a', '1', '2', '\u0120', '\u0120\u0120', '\u01201', '12']
TOKENS += ['\u00c3', '\u00a9', '<u>']
MERGES = [('\u0120', '\u0120'), ('\u0120', '1'), ('1', '2')]
KINDS = [3, *[1] * 9, 4]


def build(cuts: str, **changes):
  fields = dict(tokens=TOKENS, kinds=KINDS, merges=MERGES, bos=None) | changes
  return byte_level.build(cuts=cuts, **fields)


def fields_of(**changes):
  """A file's fields; None takes one away."""
  fields = {
      'model': 'gpt2',
      'pre': 'smollm',
      'tokens': TOKENS,
      'token_type': KINDS,
      'merges': [' '.join(pair) for pair in MERGES],
      'bos_token_id': 0,
      'eos_token_id': 0,
  } | changes
  return {
      f'tokenizer.ggml.{name}': value
      for name, value in fields.items()
      if value is not None
  }


class ByteLevelTest(parameterized.TestCase):

  @parameterized.parameters(
      # A word takes the space before it, and digits go together.
      ('gpt-2', 'a  12', [1, 4, 6, 3]),
      ('gpt-2', 'a12', [1, 7]),
      # Every digit is a word of its own, spaces before it are another.
      ('smollm', 'a  12', [1, 5, 2, 3]),
      ('smollm', 'a 12', [1, 4, 2, 3]),
      ('smollm', 'é', [8, 9]),
      # The last of some spaces goes to the next word, but digits take none.
      ('qwen2', 'a  12', [1, 4, 4, 2, 3]),
      ('qwen2', 'a12é', [1, 2, 3, 8, 9]),
      ('smollm', 'a<s>a<u>', [1, 0, 1, 10]),
  )
  def test_ids_by_hand_and_back(self, cuts, text, ids):
    made = build(cuts)
    self.assertEqual(made.encode(text).ids, ids)
    self.assertEqual(made.decode(ids, skip_special_tokens=False), text)
    plain = text.replace('<s>', '')  # Of the two only <s> is special.
    self.assertEqual(made.decode(ids), plain)

  def test_words_of_qwen_by_hand(self):
    text = "It's WE'LL 42 a!?\n\n  -b\n"
    words = ['It', "'s", ' WE', "'LL", ' ', '4', '2', ' a', '!?\n\n', ' ', ' -']
    words += ['b', '\n']
    # GPT-2 writes the end of a line as U+010A.
    letters = str.maketrans({' ': '\u0120', '\n': '\u010a'})
    found = build('qwen2').pre_tokenizer.pre_tokenize_str(text)
    self.assertEqual(
        [word for word, _ in found], [word.translate(letters) for word in words]
    )

  def test_qwen_composes_characters(self):
    self.assertEqual(build('qwen2').encode('e\u0301').ids, [8, 9])

  def test_bos_where_it_is_asked_for(self):
    made = build('smollm', bos='<s>')
    self.assertEqual(made.encode('a').ids, [0, 1])
    self.assertEqual(made.encode('a', add_special_tokens=False).ids, [1])

  @parameterized.parameters(
      (dict(cuts='llama-bpe'), "cuts words as 'llama-bpe'"),
      (dict(cuts='gpt-2', tokens=['<s>', 'a', 'a']), "the token 'a' twice"),
      (dict(cuts='gpt-2', merges=[('a', '1')]), 'no token for its merge'),
      (dict(cuts='gpt-2', merges=[('a',)]), 'no token for its merge'),
  )
  def test_what_makes_no_tokenizer_is_refused(self, changes, line):
    with self.assertRaisesRegex(ValueError, line):
      build(**changes)


class FieldsTest(parameterized.TestCase):

  def test_bos_only_where_the_file_adds_it(self):
    for adds, ids in ((None, [1]), (False, [1]), (True, [0, 1])):
      made = gguf_fields.read(fields_of(add_bos_token=adds))
      self.assertEqual(made.encode('a').ids, ids)

  def test_special_tokens_and_ends(self):
    fields = fields_of(eot_token_id=10, padding_token_id=3)
    self.assertEqual(
        gguf_fields.special_tokens(fields),
        {'bos_token': '<s>', 'eos_token': '<s>', 'pad_token': '2'},
    )
    self.assertEqual(gguf_fields.end_ids(fields), [0, 10])
    self.assertEqual(gguf_fields.end_ids(fields_of(eot_token_id=0)), [0])

  def test_K22_rows_that_stand_for_nothing_get_no_token(self):
    tokens = [*TOKENS[:4], '[PAD4]', *TOKENS[5:], '[PAD11]', '[PAD12]']
    kinds = [*KINDS[:4], 5, *KINDS[5:], 5, 5]
    made = gguf_fields.read(
        fields_of(tokens=tokens, token_type=kinds, merges=['1 2'])
    )
    # One that others follow keeps its id.
    self.assertEqual(made.get_vocab_size(), len(TOKENS))
    self.assertEqual(made.id_to_token(4), '[PAD4]')
    self.assertEqual(made.encode('a<u>').ids, [1, 10])

  @parameterized.parameters(
      (dict(model='bert'), "tokenizer.ggml.model = 'bert'"),
      (dict(model=None), 'tokenizer.ggml.model = None'),
      (dict(merges=None), 'tokenizer.ggml.merges is missing'),
      (dict(token_type=None), 'tokenizer.ggml.token_type is missing'),
      (dict(model='llama'), 'tokenizer.ggml.scores is missing'),
      (
          dict(token_type=KINDS[1:]),
          'tokenizer.ggml.token_type has 10 entries for 11 tokens',
      ),
      (dict(pre=None), 'cuts words as None'),
      (dict(eos_token_id=11), 'eos_token_id = 11'),
  )
  def test_fields_that_are_not_understood_are_refused(self, change, line):
    with self.assertRaisesRegex(ValueError, line):
      fields = fields_of(**change)
      gguf_fields.read(fields)
      gguf_fields.special_tokens(fields)


if __name__ == '__main__':
  absltest.main()
