"""Which differences from a saved run are errors, and which are warnings, wherever runs resume.

    resumed by                                          clock, curve    peak
    check_resume, check_resume_file, CurveScheduler     error           error
    lambda_lr, TrainStep                                error           warning
    follow                                              warning         warning

A record only says what the peak was, and the next update uses that of the program: an error. The
states of `lambda_lr` and `TrainStep` have peaks, with which the run continues: the peak of the
program has no effect, and the warning says how to use it. A follower has neither a clock nor an
argument `strict`, and has always continued under a different curve.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Aspect = Literal["clock", "curve", "unreadable curve", "unknown curve", "peak", "number of records"]
"""What differs. A curve is unknown if a scheduler without a curve has saved the run."""


class Difference(NamedTuple):
    """A way in which a run differs from the saved one."""

    aspect: Aspect
    problem: str = ""
    """The saved value and the present one, as a part of a sentence."""
    saved: Any = None
    """For the aspect "peak": the saved peak, or a list if the groups differ."""
    now: Any = None
    """The same for the present peak."""
    remedy: str = ""
    """How to avoid the difference; empty if there is no general advice."""


_ERRORS_OF_STATES: tuple[Aspect, ...] = ("clock", "curve", "unreadable curve")
_ERRORS_OF_RECORDS: tuple[Aspect, ...] = (*_ERRORS_OF_STATES, "peak", "number of records")


@dataclass(frozen=True)
class Policy:
    """What the differences from a saved run lead to, and the words of the messages."""

    errors: tuple[Aspect, ...]
    """The differences that are errors, unless `strict` is False."""
    subject: str
    """What cannot resume."""
    override: str = ""
    """How to resume all the same."""
    change_peak: str = ""
    """The method that changes the saved peak; empty if the run continues with the program's."""
    starts_clock: bool = True
    """A different clock starts afresh at the saved step; a record does not say where it stood."""
    groups: str = "param_groups"
    """The list of what has a curve and a peak each."""
    values: str = "learning rates"
    """The values that follow the curves."""
    peak: str = "peak"
    """The value at multiplier 1."""

    def error_message(self, difference: Difference, step: int) -> str:
        """Return the error for a run that cannot resume at this step."""
        aspect, problem = difference.aspect, difference.problem
        if aspect == "unreadable curve":
            return problem
        remedies = f"resume with the old {aspect}, or {self.override}"
        if difference.remedy:
            remedies = f"{difference.remedy}; otherwise {remedies}"
        return f"{self.subject} cannot resume at step {step}: {problem}; {remedies}"

    def warning_message(self, difference: Difference, step: int) -> str:
        """Return the warning for a run that resumes all the same."""
        aspect, problem = difference.aspect, difference.problem
        saved, now = difference.saved, difference.now
        if aspect == "unknown curve":
            return (
                f"{self.subject} was saved by a scheduler without a curve: this curve continues at "
                f"step {step}, and nothing shows whether the {self.values} so far were its own"
            )
        if aspect == "unreadable curve":
            return f"the {self.values} so far are not compared: {problem}"
        if aspect == "clock" and not self.starts_clock:
            return f"{self.subject} belongs to a different clock: {problem}"
        if aspect == "clock":
            return (
                f"{self.subject} belongs to a different clock: {problem}. The run continues at "
                f"step {step} of the curve, with a fresh clock"
            )
        if aspect == "curve":
            return (
                f"{self.subject} belongs to a different curve: {problem}. The run continues at "
                f"step {step} of this curve"
            )
        if aspect == "number of records":
            return f"{self.subject} differs: {problem}. The run continues at step {step}"
        message = f"{self.subject} has a different {self.peak}: {problem}. The run continues"
        if not self.change_peak:
            return f"{message} with {now}"
        remedy = f"to change it, call {self.change_peak}({now}) after the load"
        return f"{message} with {saved}; {remedy}"


def record_policy(num_records: int, file: str = "") -> Policy:
    """Return the policy for saved records.

    Args:
        num_records: Their number. Several may be those of other options than the learning rate.
        file: The file that has them, for messages.
    """
    subject = "the run"
    function = "check_resume"
    if file:
        subject = f"{file}: the run"
        function = "check_resume_file"
    values = "learning rates"
    if num_records > 1:
        values = "values"
    override = f"pass strict=False to {function}"
    return Policy(
        _ERRORS_OF_RECORDS,
        subject,
        override,
        starts_clock=False,
        groups="records",
        values=values,
    )


def state_policy(builder: str, change_peak: str) -> Policy:
    """Return the policy for the states of schedulers and training steps.

    Args:
        builder: The public function or class that has the default of `strict`.
        change_peak: As in `Policy`.
    """
    override = (
        f"pass strict=False to load_state_dict, or to {builder} if Checkpoints or a trainer loads"
    )
    return Policy(_ERRORS_OF_STATES, "state_dict", override=override, change_peak=change_peak)


CURVE_SCHEDULER = Policy(
    _ERRORS_OF_RECORDS, "state_dict", override="pass strict=False to load_state_dict"
)
"""The policy for the states of a `CurveScheduler`, which has its peak only in its record."""

FOLLOWER = Policy(
    errors=(),
    subject="state_dict",
    change_peak="follower.set_base_value",
    values="values",
    peak="base",
)
"""The policy for the states of followers."""
