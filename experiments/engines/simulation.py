"""Accept lengths that a server was told and did not find: SGLang's own variables, read as it reads them.

The surprise: they are ordinary variables of the environment, because that is what a reader of SGLang's documentation
looks for. What this program adds is that nothing measured under them can pass for a measurement.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.spec import CellSpec

LENGTH = "SGLANG_SIMULATE_ACC_LEN"
"""Accept length, bonus included; what is not above 0 switches it off."""
METHOD = "SGLANG_SIMULATE_ACC_METHOD"
TOKENS = "SGLANG_SIMULATE_ACC_TOKEN_MODE"
FORMER = tuple(name.replace("SGLANG_", "SGL_") for name in (LENGTH, METHOD, TOKENS))
ALLOWED = {METHOD: ("match-expected", "multinomial"), TOKENS: ("fixed", "real-draft-token")}


def check_inherited(cell: CellSpec) -> None:
    """Raises ConfigError for a shell that would make the server simulate without the cell knowing."""
    for name in (LENGTH, FORMER[0]):
        if name in os.environ and name not in cell.env:
            why = "set in the shell that runs this program, and the server would inherit it"
            raise ConfigError(f"env.{name}", f"{why}; unset it, or make it the cell's: +env.{LENGTH}=...")


def simulated_accept(cell: CellSpec) -> float | None:
    """The accept length that the cell forces; None where it is left to the drafts. Raises ConfigError."""
    for name in (name for name in FORMER if name in cell.env):
        raise ConfigError(f"env.{name}", f"a former name, which SGLang still reads; write SGLANG_{name[4:]}")
    given = cell.env.get(LENGTH)
    if given is None:
        if lone := next((name for name in ALLOWED if name in cell.env), None):
            raise ConfigError(f"env.{lone}", f"says how {LENGTH} is simulated, which is not set")
        return None
    try:
        length = float(given)
    except ValueError as error:
        raise ConfigError(f"env.{LENGTH}", f"{given!r} is no accept length; allowed: 1 to the window") from error
    for name, values in ALLOWED.items():
        if cell.env.get(name, values[0]) not in values:
            raise ConfigError(f"env.{name}", f"{cell.env[name]!r} is unknown; allowed: {', '.join(values)}")
    if length <= 0:
        return None
    if not 1 <= length <= cell.speculation.window:
        window = cell.speculation.window
        raise ConfigError(f"env.{LENGTH}", f"{length:g} cannot come out of {window} rows; allowed: 1 to {window}")
    return length


def check_simulation(cell: CellSpec) -> None:
    """Raises ConfigError for what simulated acceptance would make a lie: its tokens are not the target's."""
    check_inherited(cell)
    if simulated_accept(cell) is None:
        return
    if cell.speculation.algorithm == "none":
        raise ConfigError(f"env.{LENGTH}", "nothing is accepted without speculation; leave it out")
    if cell.gate.mode != "off":
        raise ConfigError("gate", "tokens of simulated acceptance are not the target's; allowed: gate=off")
    if cell.task.name != "none":
        raise ConfigError("task", "answers of simulated acceptance are not the target's; allowed: task=none")


def remarks(cell: CellSpec) -> Iterator[str]:
    """For every record of such a cell."""
    if length := simulated_accept(cell):
        yield f"acceptance is simulated, {length:g} tokens a step: times mean something, answers and gates nothing"
