"""The status of a step: an interrupted update or load makes it reject the next update."""

_LOAD = (
    "an update was interrupted between its optimizer's step and its count, or a load failed: load "
    "a checkpoint, by load_state_dict, before the next update"
)
_RESTART = (
    "an error ended an update on this rank, and other ranks may still wait for it: stop all ranks, "
    "and restart the program from its last checkpoint"
)


class Status:
    """Records an update, a load or a change of the peaks that began and did not complete.

    An error or an interrupt, such as Ctrl-C, leaves it incomplete: weights may have moved, or other
    ranks may wait for this one. The step then makes no update until a state is loaded; on several
    ranks, after an interrupted update, until the program restarts.

    Args:
        is_distributed: True if the model is wrapped for several ranks.
    """

    def __init__(self, *, is_distributed: bool) -> None:
        self._is_distributed = is_distributed
        self._problem = ""
        """The message while anything is incomplete, else ""."""

    def check(self) -> None:
        """Check that nothing is incomplete.

        Raises:
            RuntimeError: An update or a load was interrupted; the message says how to resume.
        """
        if self._problem:
            raise RuntimeError(self._problem)

    def check_loadable(self) -> None:
        """Check that loading a state is enough to resume.

        Raises:
            RuntimeError: An update was interrupted on this rank, and others may wait for it.
        """
        if self._problem == _RESTART:
            raise RuntimeError(self._problem)

    # An update, in the order of its calls.

    def begin_update(self) -> None:
        """Begin an update.

        On one rank an error before `begin_writing` leaves the step usable. Under a wrapper, an
        error anywhere leaves other ranks waiting in a collective, and the wrapper in the middle of
        a pass.
        """
        if self._is_distributed:
            self._problem = _RESTART

    def begin_writing(self) -> None:
        """Begin to write what the update changes: weights, then counters and loss scale.

        An error leaves, for instance, new weights with old counters, so that the next update would
        use the same learning rate again.
        """
        self._problem = _RESTART if self._is_distributed else _LOAD

    def complete(self) -> None:
        """Complete the update or the load; any earlier problem ends with it."""
        self._problem = ""

    # A load.

    def begin_load(self) -> None:
        """Begin to write a state, until `complete`."""
        self._problem = _LOAD
