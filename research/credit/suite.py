"""The settings of the suite: what is varied is what a credit method might depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from research.credit.chain import Chain
from research.credit.delegation import Delegation
from research.credit.environment import Environment
from research.credit.tail import Reading, Waiting
from research.credit.team import Team
from research.credit.walk import Walk


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment, and how long it is trained in."""

    environment: Environment
    updates: int = 80


def _by_name(*settings: Setting) -> Mapping[str, Setting]:
    return MappingProxyType({setting.environment.name: setting for setting in settings})


SUITE = _by_name(
    Setting(Chain("chain, first step decides", decisive=0)),
    Setting(Chain("chain, fifth step decides", decisive=4)),
    Setting(Chain("chain, last step decides", decisive=11)),
    Setting(Chain("chain, outcome hidden", decisive=4, seen=False)),
    Setting(Chain("chain, actions echoed", decisive=4, echo=True)),
    Setting(Chain("chain, noisy reward", decisive=4, noise=0.5)),
    Setting(Chain("chain, free wording", decisive=4, wordings=10_000)),
    Setting(Chain("chain, hidden and free wording", decisive=4, seen=False, wordings=10_000)),
    Setting(Chain("mixed, kind told", decisive=(1, 4, 7, 10))),
    Setting(Chain("mixed, kind hidden", decisive=(1, 4, 7, 10), told=False)),
    Setting(Chain("mixed, kind and outcome hidden", decisive=(1, 4, 7, 10), told=False, seen=False)),
    Setting(Team("team, talker first", talks=(9, 0, 0))),
    Setting(Team("team, talker between", talks=(0, 9, 0))),
    Setting(Team("team, talker last", talks=(0, 0, 9))),
    Setting(Team("team, talker around", talks=(3, 3, 3))),
    Setting(Team("team, talker heard", talks=(3, 3, 3), heard=True)),
    Setting(Team("team, talker shown nothing", talks=(3, 3, 3), private=True)),
    Setting(Team("team, free wording", talks=(3, 3, 3), wordings=10_000)),
    Setting(Walk("walk, rooms met again", horizon=10)),
    Setting(Reading("tail, first action decides")),
    Setting(Waiting("tail, waiting for a clue")),
    Setting(Delegation("delegation, final reward")),
    Setting(Delegation("delegation, parts paid", paid=True)),
)
