"""Mechanical mutants of a module's source, made by the operators of cosmic-ray.

Only its operators are used, as a library: its runner starts a test process per
mutant and writes to the working tree. Of the operators those are left out that
make no plausible fault: shifts or bit operations in place of arithmetic and the
reverse, which floats refuse; `is` in place of `==`; comparisons other than the
opposite and the neighbouring bound. Annotations are not touched, and neither is
the `frozen` of a dataclass: it forbids what nothing in the package does.
"""

import dataclasses
import pathlib
import random
from collections.abc import Sequence

import parso
from cosmic_ray import ast as cosmic_ast
from cosmic_ray.operators import provider

_BINARY = {
    'Add': ('Sub', 'Mul'),
    'Sub': ('Add', 'Mul'),
    'Mul': ('Add', 'Div'),
    'Div': ('Mul', 'FloorDiv'),
    'FloorDiv': ('Mul', 'Div'),
    'Mod': ('Mul', 'FloorDiv'),
    'Pow': ('Mul',),
    'LShift': ('RShift',),
    'RShift': ('LShift',),
    'BitAnd': ('BitOr', 'BitXor'),
    'BitOr': ('BitAnd', 'BitXor'),
    'BitXor': ('BitOr',),
}
_COMPARISON = {
    'Eq': ('NotEq',),
    'NotEq': ('Eq',),
    'Lt': ('LtE', 'GtE'),
    'LtE': ('Lt', 'Gt'),
    'Gt': ('GtE', 'LtE'),
    'GtE': ('Gt', 'Lt'),
    'Is': ('IsNot',),
    'IsNot': ('Is',),
}
OPERATORS = (
    *(f'ReplaceBinaryOperator_{a}_{b}' for a in _BINARY for b in _BINARY[a]),
    *(
        f'ReplaceComparisonOperator_{a}_{b}'
        for a in _COMPARISON
        for b in _COMPARISON[a]
    ),
    'ReplaceUnaryOperator_Delete_USub',
    'ReplaceUnaryOperator_Delete_Invert',
    'ReplaceUnaryOperator_Delete_Not',
    'AddNot',
    'ReplaceTrueWithFalse',
    'ReplaceFalseWithTrue',
    'ReplaceAndWithOr',
    'ReplaceOrWithAnd',
    'ReplaceBreakWithContinue',
    'ReplaceContinueWithBreak',
    'NumberReplacer',
    'RemoveDecorator',
    'ZeroIterationForLoop',
)
# Parents of operators that have a left and a right side.
_BINARY_PARENTS = frozenset(
    {'arith_expr', 'term', 'power', 'expr', 'and_expr', 'xor_expr',
     'shift_expr'}
)


@dataclasses.dataclass(frozen=True)
class Mutant:
  """One change at one place of a module.

  Attributes:
    module: path of the module from the root of the project.
    operator: name of the operator.
    occurrence: which of its places in the module.
    line: line number, from 1.
  """

  module: str
  operator: str
  occurrence: int
  line: int

  @property
  def name(self) -> str:
    """What identifies it within one state of the source."""
    return f'{self.module}:{self.line} {self.operator} #{self.occurrence}'


class _Mutate(cosmic_ast.Visitor):
  """Applies an operator at one of its places."""

  def __init__(self, operator, occurrence: int):
    self._operator = operator
    self._left = occurrence

  def visit(self, node):
    for index, _ in enumerate(_places(self._operator, node)):
      if not self._left:
        node = self._operator.mutate(node, index)
      self._left -= 1
    return node


def _places(operator, node) -> list[int]:
  """Lines where the operator can change a node."""
  places = [start[0] for start, _ in operator.mutation_positions(node)]
  return places if places and _is_plausible(node) else []


def _is_plausible(node) -> bool:
  """False in annotations, at `frozen`, and at what only looks binary."""
  if isinstance(node, parso.python.tree.Operator):
    if node.parent.type not in _BINARY_PARENTS:
      return False
  while node.parent is not None:
    parent = node.parent
    if parent.type == 'annassign' and parent.children[1] is node:
      return False
    if parent.type == 'tfpdef':
      return False
    if parent.type == 'argument' and parent.get_first_leaf().value == 'frozen':
      return False
    if parent.type == 'funcdef' and parent.annotation is node:
      return False
    node = parent
  return True


def of_source(module: str, source: str) -> list[Mutant]:
  """All mutants of a module."""
  made = [(name, provider.OperatorProvider()[name]()) for name in OPERATORS]
  seen = dict.fromkeys(OPERATORS, 0)
  found = []
  for node in cosmic_ast.ast_nodes(cosmic_ast.get_ast(source)):
    for name, operator in made:
      for line in _places(operator, node):
        found.append(Mutant(module, name, seen[name], line))
        seen[name] += 1
  return found


def apply(source: str, mutant: Mutant) -> str:
  """The source with the mutant's change."""
  operator = provider.OperatorProvider()[mutant.operator]()
  visitor = _Mutate(operator, mutant.occurrence)
  return visitor.walk(cosmic_ast.get_ast(source)).get_code()


def changed_line(source: str, mutated: str, line: int) -> tuple[str, str]:
  """The line of the change before and after, stripped."""
  left, right = source.splitlines(), mutated.splitlines()
  if len(left) != len(right):
    return left[line - 1].strip(), ''
  for one, other in zip(left, right):
    if one != other:
      return one.strip(), other.strip()
  return left[line - 1].strip(), right[line - 1].strip()


def sample(
    mutants: Sequence[Mutant], number: int | None, seed: int
) -> list[Mutant]:
  """A draw without replacement, in order; a larger one holds a smaller one."""
  mutants = sorted(mutants, key=_place)
  random.Random(seed).shuffle(mutants)
  return sorted(mutants[:number], key=_place)


def _place(mutant: Mutant):
  return mutant.module, mutant.line, mutant.operator, mutant.occurrence


def read(root: pathlib.Path, module: str) -> str:
  """The source of a module."""
  return (root / module).read_text('utf-8')
