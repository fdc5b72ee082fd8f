"""Several arithmetic problems in a row, a calculator, and a report at the end.

The run is longer than a small window, so its history gets compacted: what the
agent answered so far survives only in the summary. The outcome needs every
answer in the report, so credit has to cross the cuts.
"""

import dataclasses
import functools
from typing import Any

from rl_tpu.environments import arithmetic_parser as parser
from rl_tpu.environments import calculator
from rl_tpu.environments import protocol
from rl_tpu.records import records
from rl_tpu.text import hashing
from rl_tpu.types import termination as term

NAME = 'arithmetic_tools'
VERSION = '2'
NO_ANSWERS = 'none'

_FAILURE = protocol.End(term.Termination.FAILURE)


@dataclasses.dataclass(frozen=True)
class Progress:
  """How far a run has come; what a scripted policy reads.

  Attributes:
    index: problem that is open; the number of problems once all are answered.
    expression: of the open problem; empty at the report.
    answer: the right answer of the open problem; empty at the report.
    calls: calculator calls made for it.
    result: text of the last calculator result for it; empty before one.
    answers: what the agent answered so far.
  """

  index: int
  expression: str
  answer: str
  calls: int
  result: str
  answers: tuple[str, ...]


@functools.lru_cache
def _spec(problems: int, max_calls: int) -> protocol.EnvironmentSpec:
  tools = {
      'calc': {
          'characters': '0123456789+-* ',
          'max_calls_per_problem': max_calls,
          'max_length': calculator.MAX_LENGTH,
      }
  }
  return protocol.EnvironmentSpec(
      name=NAME,
      version=f'{VERSION}+problems={problems},max_calls={max_calls}',
      blocking=False,
      capabilities=frozenset({
          protocol.RUNTIME_SUMMARY,
          protocol.STATE_ID,
          protocol.READS_SUMMARY,
      }),
      permissions_hash=hashing.of_json({'files': [], 'hosts': []}),
      tool_set_hash=hashing.of_json(tools),
      reward_names=frozenset({'tool_valid', 'sub_answer'}),
      parse_reply=parser.parts,
  )


class ArithmeticTools:
  """Shows problems one after the other and checks each answer at once.

  A reply is one line: ` calc(34 + 25)`, ` answer 59`, and after the last
  problem the report ` 59 91 7`. Anything else ends the run as a failure.
  """

  def __init__(self, problems: int = 3, max_calls: int = 2):
    """Settings of every run.

    Args:
      problems: problems of a task.
      max_calls: calculator calls for one problem; one more is a failure.

    Raises:
      ValueError: fewer than one problem, or a negative number of calls.
    """
    if problems < 1:
      raise ValueError(
          f'environment.settings.problems = {problems}: at least 1.'
      )
    if max_calls < 0:
      raise ValueError(
          f'environment.settings.max_calls = {max_calls}: 0 or more.'
      )
    self._num_problems = problems
    self._max_calls = max_calls
    self._problems: list[dict[str, Any]] = []
    self._task_id = ''
    self._answers: list[str] = []
    self._num_lost = 0
    self._calls = 0
    self._result = ''
    self._reported: list[str] = []
    self._is_open = False
    self.runs = 0

  @property
  def spec(self) -> protocol.EnvironmentSpec:
    """Name, version and tools of these settings."""
    return _spec(self._num_problems, self._max_calls)

  @property
  def progress(self) -> Progress:
    """How far the run has come."""
    index = len(self._answers)
    problem = {} if self._at_report else self._problems[index]
    return Progress(
        index=index,
        expression=problem.get('expression', ''),
        answer=problem.get('answer', ''),
        calls=self._calls,
        result=self._result,
        answers=tuple(self._answers),
    )

  @property
  def _at_report(self) -> bool:
    return len(self._answers) == self._num_problems

  def reset(self, task: records.Task, seed: int) -> protocol.Observation:
    """Starts the task's problems; nothing here is random.

    Raises:
      ValueError: the task has another number of problems.
    """
    del seed
    problems = task.payload['problems']
    if len(problems) != self._num_problems:
      raise ValueError(
          f'task {task.task_id} has {len(problems)} problems, but'
          f' environment.settings.problems = {self._num_problems}; give'
          ' tasks.settings.problems the same number.'
      )
    self._problems = problems
    self._task_id = task.task_id
    self._answers, self._reported = [], []
    self._num_lost = 0
    self._calls, self._result = 0, ''
    self._is_open = True
    self.runs += 1
    return protocol.Observation(prompt=self._prompt())

  def instruction(self) -> tuple[protocol.Message, ...]:
    """The task, and how many answers are lost: wrong, or not in the summary.

    A slip in a summary shows here, so the state after a cut says what the run
    can still come to.
    """
    text = f'{self._num_problems} sums, {self._num_lost} lost'
    return (protocol.Message('system', text),)

  def step(self, action: protocol.Action) -> protocol.Step:
    """Applies a call, an answer or the report.

    Raises:
      RuntimeError: no run is open.
    """
    if not self._is_open:
      raise RuntimeError('step was called on a run that has ended; reset it.')
    if self._at_report:
      return self._report(action.text)
    call = parser.CALL.fullmatch(action.text)
    if call:
      return self._call(call['arg_value'])
    answer = parser.ANSWER.fullmatch(action.text)
    if answer:
      return self._answer(answer['arg_value'])
    return self._fail({'malformed': 1.0})

  def summarise(self) -> str:
    """The answers given so far."""
    return ' '.join(self._answers) or NO_ANSWERS

  def remember(self, summary: str) -> None:
    """Counts the answers that a summary does not hold, right and in place."""
    answered = self._problems[: len(self._answers)]
    kept = sum(
        said == problem['answer']
        for said, problem in zip(summary.split(), answered)
    )
    self._num_lost = len(self._answers) - kept

  def evidence(self) -> dict[str, Any]:
    """The task's problems and the numbers of the report, in order."""
    return {
        'problems': [dict(problem) for problem in self._problems],
        'reported': list(self._reported),
    }

  def state_id(self) -> str:
    """Stands for the task, the answers so far and the open calculation."""
    return hashing.of_json(
        [self._task_id, self._answers, self._calls, self._result]
    )

  def close(self) -> None:
    """Ends the run."""
    self._is_open = False

  def _prompt(self) -> tuple[protocol.Message, ...]:
    if self._at_report:
      return (protocol.Message('user', 'report'),)
    index = len(self._answers)
    text = f'{index + 1}: {self._problems[index]["expression"]}'
    return (protocol.Message('user', text),)

  def _call(self, expression: str) -> protocol.Step:
    if self._calls == self._max_calls:
      return self._fail({'tool_calls': 1.0, 'tool_errors': 1.0})
    self._calls += 1
    value = calculator.calculate(expression)
    self._result = 'err' if value is None else str(value)
    is_error = float(value is None)
    message = protocol.Message('tool', f'= {self._result}')
    return protocol.Step(
        protocol.Observation(messages=(message,)),
        rewards={'tool_valid': 1.0 - is_error},
        counters={'tool_calls': 1.0, 'tool_errors': is_error},
    )

  def _answer(self, answer: str) -> protocol.Step:
    is_right = answer == self._problems[len(self._answers)]['answer']
    self._answers.append(answer)
    self._calls, self._result = 0, ''
    message = protocol.Message('tool', 'right' if is_right else 'wrong')
    return protocol.Step(
        protocol.Observation(messages=(message,), prompt=self._prompt()),
        rewards={'sub_answer': float(is_right)},
        counters={'answers_right': float(is_right)},
    )

  def _report(self, text: str) -> protocol.Step:
    if not parser.REPORT.fullmatch(text):
      return self._fail({'malformed': 1.0})
    self._reported = text.split()
    self._is_open = False
    return protocol.Step(end=protocol.End(term.Termination.POLICY_STOP))

  def _fail(self, counters: dict[str, float]) -> protocol.Step:
    self._is_open = False
    return protocol.Step(end=_FAILURE, counters=counters)
