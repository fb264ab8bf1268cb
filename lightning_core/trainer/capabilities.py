"""What goes together: algorithm, credit method, backend and option, as the code itself says when it is asked.

Nothing here knows the answers. Each combination is made as a run would make it, and asked as a run would ask
at its start: the algorithm's own checks, `check_credit`, `check_signals`, `check_judge` and `check_backend`.
An option is asked with values beside its default. If a value is refused alone, it is asked once more together
with one other option, so that "with X" can be told from "no".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from types import MappingProxyType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from lightning_core.algorithms.base import Algorithm, Phase
from lightning_core.algorithms.corrections import Masked, Truncated
from lightning_core.algorithms.options import LEAST
from lightning_core.backends.base import check_backend
from lightning_core.errors import LightningError, PluginError
from lightning_core.hookspecs import Kind
from lightning_core.judge.judge import Judge
from lightning_core.plugins import Plugins
from lightning_core.trainer.course import check_signals, make_courses
from lightning_core.trainer.judging import check_judge

SHOWN: Final = ({"messages": [{"role": "user", "content": "1 + 1?"}], "reply": "2"},)
EXAMPLES: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "demonstrations": (SHOWN,),
        "correction": (None, Truncated(), Masked()),
        "constant": (512,),
        "serving_gpus": (1,),
        "context": (1024,),
        "critic": (),
    }
)
"""Values of options that no type tells; none for a critic, whose own options are elsewhere."""
NOT_OPTIONS: Final = frozenset({"self", "model", "seed", "credit"})


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was asked."""

    algorithm: str
    asked: str
    """A credit method, a backend, or an option with its value."""
    option: str
    """What a refusal must name: an option, "credit", or a backend's name."""
    refusal: str | None = None
    """None: it can be done."""
    companion: str | None = None
    """Another option, with its value, together with which it can be done."""
    default: bool = False
    """Whether it is so without being asked for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One option with a value beside its default."""

    name: str
    value: Any

    def __str__(self) -> str:
        shown = "[...]" if self.value is SHOWN else repr(self.value)
        return f"{self.name}={shown}"


def settings_of(part: Callable[..., Any], *, every: bool = False) -> list[Setting]:
    """Every option of an algorithm or a backend, with each value beside its default that is asked; with
    `every` each option once, with its default."""
    # a dataclass that inherits fields has their types where each was written
    hints = get_type_hints(part if is_dataclass(part) else getattr(part, "__init__", part))
    options = [
        parameter for name, parameter in inspect.signature(part).parameters.items() if name not in NOT_OPTIONS
    ]
    if every:
        return [Setting(option.name, option.default) for option in options]
    return [
        Setting(option.name, value)
        for option in options
        for value in _values(option.name, option.default, hints.get(option.name, Any))
    ]


def _values(name: str, default: Any, hint: Any) -> tuple[Any, ...]:
    if name in EXAMPLES:
        return EXAMPLES[name]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if words:
        return tuple(word for word in words if word != default)
    if bool in kinds:
        return tuple(value for value in (False, True) if value is not default)
    if int in kinds:
        least = LEAST.get(name)
        lowest = (least,) if least is not None and default is not None and least < default else ()
        return (*lowest, (default or 0) + 1)
    if float in kinds:
        return (default / 2 if default else 0.1,)
    return (None,) if type(None) in kinds and default is not None else ()


def refusal_of(attempt: Callable[[], object]) -> str | None:
    """What it is refused with; None if it is not."""
    try:
        attempt()
    except LightningError as problem:
        return str(problem)
    return None


class Walk:
    """Asks everything there is, of the parts that are registered."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self.algorithms = list(plugins.names("algorithm"))
        self.credits = list(plugins.names("credit"))
        self.backends = [name for name in plugins.names("backend") if self._can_be_asked(name)]
        """Without those whose packages are not installed."""

    def part(self, kind: Kind, name: str) -> Any:
        """What is registered under the name."""
        return self._plugins.part(kind, name)

    def _can_be_asked(self, backend: str) -> bool:
        try:
            self._plugins.part("backend", backend)
        except PluginError:
            return False
        return True

    def _make(self, name: str, **options: Any) -> Algorithm:
        """As a run makes it: with its credit method, and both checked. Raises ConfigError."""
        algorithm: Algorithm = self._plugins.part("algorithm", name)(**options)
        make_courses([Phase(algorithm, 1)], self._plugins)
        return algorithm

    def credit(self) -> Iterator[Case]:
        """Every algorithm with every credit method; only those that let one choose."""
        for name in self.algorithms:
            part = self.part("algorithm", name)
            for setting in self._credit_settings(part):
                yield self._ask(name, setting, settings_of(part))

    def options(self) -> Iterator[Case]:
        """Every option of every algorithm, with every value that is beside the default of one of them."""
        settings = {name: settings_of(self.part("algorithm", name)) for name in self.algorithms}
        asked = {str(each): each for own in settings.values() for each in own}
        names = dict.fromkeys(each.name for each in asked.values())
        for setting in sorted(asked.values(), key=lambda each: list(names).index(each.name)):
            for name in self.algorithms:
                part = self.part("algorithm", name)
                option = inspect.signature(part).parameters.get(setting.name)
                if option is None:
                    continue
                if option.default == setting.value:
                    yield Case(name, str(setting), setting.name, default=True)
                    continue
                yield self._ask(name, setting, [*settings[name], *reversed(self._credit_settings(part))])

    def signals(self) -> Iterator[Case]:
        """Every algorithm with what else makes rewards."""
        judge = Judge(model="a-model", base_url="http://localhost:8000/v1")
        for label, algorithm in self._subjects():
            courses = make_courses([Phase(algorithm, 1)], self._plugins)
            air = refusal_of(partial(check_signals, courses, air=True, judge=False))
            yield Case(label, "air=True", "air", air)

            def ask(courses: Any = courses) -> None:
                check_signals(courses, air=False, judge=True)
                check_judge(judge, courses)

            yield Case(label, "judge=Judge(...)", "judge", refusal_of(ask))

    def serving(self) -> Iterator[tuple[str, Case]]:
        """(backend, case): every algorithm, and every option of one that is not refused as such, on every
        backend."""
        for backend in self.backends:
            for label, algorithm in self._subjects():
                yield backend, self._on(backend, label, Setting("algorithm", label), algorithm)
            for name in self.algorithms:
                for setting in settings_of(self.part("algorithm", name)):
                    changed = {setting.name: setting.value}
                    if refusal_of(partial(self._make, name, **changed)) is None:
                        yield backend, self._on(backend, name, setting, self._make(name, **changed))

    def _credit_settings(self, algorithm: Any) -> list[Setting]:
        """None for an algorithm that has its own and lets none choose."""
        chooses = "credit" in inspect.signature(algorithm).parameters
        return [Setting("credit", name) for name in self.credits] if chooses else []

    def _ask(self, name: str, setting: Setting, others: list[Setting]) -> Case:
        """An option of an algorithm, alone and then with another."""
        return _case(name, setting, others, lambda changed: self._make(name, **changed))

    def _on(self, backend: str, label: str, setting: Setting, algorithm: Algorithm) -> Case:
        """An algorithm on a backend with its defaults, and then with another setting of the backend."""
        part = self.part("backend", backend)

        def ask(changed: Mapping[str, Any]) -> None:
            made = part(
                model="tiny", **{name: value for name, value in changed.items() if name != setting.name}
            )
            check_backend(made, algorithm)
            check_backend(made, algorithm, first_phase=False)

        return _case(label, setting, settings_of(part), ask)

    def _subjects(self) -> Iterator[tuple[str, Algorithm]]:
        """Every algorithm with its defaults, and those that learn from demonstrations as that, too."""
        for name in self.algorithms:
            yield name, self._make(name)
            if "demonstrations" in inspect.signature(self.part("algorithm", name)).parameters:
                yield f"{name}, demonstrations", self._make(name, demonstrations=SHOWN)


def _case(
    algorithm: str, setting: Setting, others: list[Setting], make: Callable[[dict[str, Any]], object]
) -> Case:
    """What comes of a setting: alone, and where that is refused together with each of the others."""
    own = {setting.name: setting.value}
    refused = refusal_of(lambda: make(own))
    if refused is None:
        return Case(algorithm, str(setting), setting.name)
    for other in others:
        together = {**own, other.name: other.value}
        if other.name != setting.name and refusal_of(partial(make, together)) is None:
            return Case(algorithm, str(setting), setting.name, refused, str(other))
    return Case(algorithm, str(setting), setting.name, refused)
